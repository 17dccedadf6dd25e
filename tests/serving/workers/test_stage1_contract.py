"""What a YOWOv3 export looks like inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline_ver2.config import Config
from pipeline_ver2.errors import ConfigError
from serving.workers.stage1_contract import Contract, metadata_of, read_contract, read_model
from tests import tiny_detector as tiny

MakeConfig = Callable[..., Config]

Sides = Sequence[int | str | None] | None
UPSTREAM: Sides = (1, 3, 16, 224, 224)


def _model(
    *inputs: tuple[str, int, Sides],
    outputs: Sequence[tuple[str, int, Sides]] = (("image", TensorProto.FLOAT, (1, 28, 1029)),),
    metadata: dict[str, str] | None = None,
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(*value) for value in inputs]
    found = [helper.make_tensor_value_info(*value) for value in outputs]
    node = helper.make_node("Identity", [given[0].name if given else "x"], [found[0].name if found else "y"])
    model = helper.make_model(helper.make_graph([node], "g", given, found))
    helper.set_model_props(model, metadata or {})
    return model


def _clip(*sides: int | str | None, kind: int = TensorProto.FLOAT) -> tuple[str, int, Sides]:
    return ("clip", kind, sides or UPSTREAM)


def _read(stage1_config: MakeConfig, model: onnx.ModelProto, **keys: Any) -> Contract:  # noqa: ANN401 - keys of a section
    return read_contract(model, stage1_config(**{"clip_length": 16, **keys}).stage1)


@pytest.mark.fault("A7")
def test_the_upstream_export(stage1_config: MakeConfig) -> None:
    """`clip` 1x3x16x224x224 float32 to `image` 1x28xN: a batch of 1, 24 classes."""
    contract = _read(stage1_config, _model(_clip()))
    assert (contract.batch, contract.clip_length, contract.image_size, contract.classes) == (1, 16, (224, 224), 24)
    assert (contract.input.name, contract.output.name) == ("clip", "image")
    assert contract.input.told() == {"name": "clip", "precision": "float32", "shape": [1, 3, 16, 224, 224]}


@pytest.mark.fault("A7")
def test_precisions_may_differ(stage1_config: MakeConfig) -> None:
    """float16 in and float32 out, a free batch, another size and number of anchors."""
    model = _model(
        _clip("n", 3, 32, 128, 160, kind=TensorProto.FLOAT16), outputs=[("y", TensorProto.FLOAT, ("n", 84, None))]
    )
    contract = _read(stage1_config, model, clip_length=32)
    assert (contract.input.dtype.name, contract.output.dtype.name) == ("float16", "float32")
    assert (contract.batch, contract.image_size, contract.classes) == (None, (128, 160), 80)


def test_an_output_of_no_shape_is_left_to_the_first_run(stage1_config: MakeConfig) -> None:
    """If the file does not say what comes out, the classes stay unknown."""
    model = _model(_clip(), outputs=[("y", TensorProto.FLOAT, None)])
    assert _read(stage1_config, model).classes is None


def test_weights_among_the_inputs_are_none(stage1_config: MakeConfig) -> None:
    """Old files list their weights as inputs; that is one input all the same."""
    model = _model(_clip(), ("weight", TensorProto.FLOAT, (2,)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "weight"))
    assert _read(stage1_config, model).input.name == "clip"


@pytest.mark.parametrize(
    ("metadata", "keys"),
    [({"clip_length": "8", "image_size": "[64, 96]"}, {}), ({}, {"image_size": [64, 96]})],
)
def test_open_sides_come_from_metadata_or_configuration(
    stage1_config: MakeConfig, metadata: dict[str, str], keys: dict[str, Any]
) -> None:
    """Free T, H and W are named by the file's metadata, else by stage1.clip_length and stage1.image_size."""
    contract = _read(stage1_config, _model(_clip("n", 3, "t", "h", "w"), metadata=metadata), clip_length=8, **keys)
    assert (contract.clip_length, contract.image_size) == (8, (64, 96))


FLOAT = TensorProto.FLOAT
MISFITS: dict[str, tuple[onnx.ModelProto, str]] = {
    "no input": (_model(), "expected one input .* found 0: none"),
    "two inputs": (_model(_clip(), ("mask", FLOAT, (1,))), "found 2: clip, mask"),
    "two outputs": (_model(_clip(), outputs=[("a", FLOAT, None), ("b", FLOAT, None)]), "one output .* found 2: a, b"),
    "pixels": (_model(_clip(kind=TensorProto.UINT8)), "float32 or float16, found clip UINT8"),
    "double": (_model(_clip(kind=TensorProto.DOUBLE)), "found clip DOUBLE"),
    "integers out": (_model(_clip(), outputs=[("y", TensorProto.INT64, (1, 28, 9))]), "found y INT64"),
    "a picture": (_model(_clip(1, 3, 224, 224)), r"found clip FLOAT \[1, 3, 224, 224\]"),
    "no shape": (_model(("clip", FLOAT, None)), "found clip float32 None"),
    "channels last": (_model(_clip(1, 16, 224, 224, 3)), r"found clip float32 \[1, 16, 224, 224, 3\]"),
    "boxes after NMS": (_model(_clip(), outputs=[("y", FLOAT, ("n", 6))]), r"\[B,4\+C,N\] .* found y FLOAT \['n', 6\]"),
    "no classes": (_model(_clip(), outputs=[("y", FLOAT, (1, 4, 9))]), "no classes beside the box"),
    "no batch": (_model(_clip(0, 3, 16, 224, 224)), "a side of no length"),
    "open sides": (_model(_clip(1, 3, 16, "h", "w")), r"stage1\.image_size: must be set"),
    "broken metadata": (
        _model(_clip(), metadata={"image_size": "[1,"}),
        "`image_size` of its metadata is not valid JSON",
    ),
    "another length": (_model(_clip(1, 3, 8, 224, 224)), r"stage1\.clip_length: 16, but the model takes clips of 8"),
}


@pytest.mark.fault("A7")
@pytest.mark.parametrize("kind", MISFITS)
def test_what_is_no_export_is_refused(stage1_config: MakeConfig, kind: str) -> None:
    """Anything else is a refusal that says what was expected and what was found."""
    model, said = MISFITS[kind]
    with pytest.raises(ConfigError, match=said) as caught:
        _read(stage1_config, model)
    assert str(caught.value).startswith("stage1.")


def test_another_image_size_is_refused(stage1_config: MakeConfig) -> None:
    """A configured size must be the file's."""
    with pytest.raises(ConfigError, match=r"stage1\.image_size: \[64, 64\], but the model takes \[224, 224\]"):
        _read(stage1_config, _model(_clip()), image_size=[64, 64])


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    """Missing files, folders, noise and empty files name the key and the path."""
    noise, empty = tmp_path / "noise.onnx", tmp_path / "empty.onnx"
    noise.write_bytes(b"no model at all")
    empty.write_bytes(b"")
    for path in (tmp_path / "gone.onnx", tmp_path, noise, empty):
        with pytest.raises(ConfigError, match=r"stage1\.model_path") as caught:
            read_model(path)
        assert str(path) in str(caught.value)


def test_properties_are_read(tiny_detector: Path) -> None:
    """The labels of the file stand in its properties."""
    assert metadata_of(read_model(tiny_detector)) == {"labels": '["red", "green", "blue"]'}
    assert tiny.LABELS == ("red", "green", "blue")
