"""The Python-backend model, called as Triton would call it; what stands for Triton's own module is written here."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import serving
import tests.tiny_detector as tiny

FOLDER = Path(serving.__file__).parent / "triton" / "yowov3"


@dataclass
class Tensor:
    """A named array."""

    name: str
    array: NDArray[Any]

    def as_numpy(self) -> NDArray[Any]:
        """The array."""
        return self.array


@dataclass
class Request:
    """A request with one input and parameters as JSON."""

    clips: NDArray[np.uint8]
    told: str = "{}"

    def parameters(self) -> str:
        """The JSON."""
        return self.told


@dataclass
class Response:
    """What is given back."""

    output_tensors: list[Tensor]
    error: object = None

    def array(self, name: str) -> NDArray[Any]:
        """An output by name."""
        return next(tensor.array for tensor in self.output_tensors if tensor.name == name)


def _input_of(request: Request, name: str) -> Tensor:
    assert name == "clips"
    return Tensor(name, request.clips)


def _backend_utils() -> ModuleType:
    module = types.ModuleType("triton_python_backend_utils")
    members = {
        "Tensor": Tensor,
        "InferenceResponse": Response,
        "TritonError": str,
        "TritonModelException": type("TritonModelException", (Exception,), {}),
        "get_input_tensor_by_name": _input_of,
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The model file, imported as Triton does, with a detector of 4 frames of 32 x 48 configured."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", _backend_utils())
    content = {
        "stage1": {
            "model_path": str(tiny.write_detector(tmp_path / "tiny.onnx")),
            "clip_length": tiny.CLIP_LENGTH,
            "provider": "cpu",
            "threads": 1,
        }
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    monkeypatch.setenv("ZROACT_CONFIG", str(tmp_path / "config.json"))
    spec = importlib.util.spec_from_file_location("triton_model", FOLDER / "1" / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(*dims: int) -> dict[str, str]:
    """What Triton hands to `initialize`, with these dims of the input."""
    sides = [str(side) for side in dims or (tiny.CLIP_LENGTH, tiny.HEIGHT, tiny.WIDTH, 3)]
    return {"model_config": json.dumps({"input": [{"name": "clips", "dims": sides}]})}


@pytest.fixture
def model(backend: ModuleType) -> Iterator[Any]:
    """The model, initialized; let go of afterwards."""
    made = backend.TritonPythonModel()
    made.initialize(arguments())
    yield made
    made.finalize()


def clips(*colours: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Clips that end in these colours."""
    return np.stack([tiny.clip_of(colour) for colour in colours])


def test_each_request_gets_its_response(model: Any) -> None:  # noqa: ANN401
    """Boxes and scores are the detector's, padded to the most of the request; its parameters count."""
    low = json.dumps({"threshold": 0.5, "nms_iou": 0.45, "binary_data_output": True})
    both, one = model.execute([Request(clips(tiny.RED, tiny.WHITE), low), Request(clips(tiny.RED))])

    assert [tensor.name for tensor in both.output_tensors] == ["status", "num_detections", "boxes", "scores"]
    assert [tensor.array.dtype.name for tensor in both.output_tensors] == ["int32", "int32", "float32", "float32"]
    assert both.array("status").tolist() == [[0], [0]]
    assert both.array("num_detections").tolist() == [[2], [1]]
    assert both.array("boxes").shape == (2, 2, 4)
    np.testing.assert_allclose(both.array("boxes")[0], [tiny.MIDDLE_BOX, tiny.CORNER_BOX], atol=1e-4)
    np.testing.assert_allclose(both.array("scores")[0, 0], [1, 0, 0], atol=1e-3)
    assert both.array("boxes")[1, 1].tolist() == [0, 0, 0, 0]
    assert one.array("num_detections").tolist() == [[2]]
    (strict,) = model.execute([Request(clips(tiny.RED), '{"threshold": 0.9}')])
    assert strict.array("num_detections").tolist() == [[1]]


def test_without_findings_there_is_still_a_value(model: Any) -> None:  # noqa: ANN401
    """A tensor without a value is something not every client takes."""
    (response,) = model.execute([Request(clips(tiny.RED), '{"threshold": 1.0}')])
    (nothing,) = model.execute([Request(clips((60, 60, 60)), "")])
    assert response.array("boxes").shape[1] >= 1
    assert nothing.array("num_detections").tolist() == [[0]]
    assert (nothing.array("boxes").shape, nothing.array("scores").shape) == ((1, 1, 4), (1, 1, 3))


@pytest.mark.fault("A5")
def test_what_fails_fails_alone(model: Any) -> None:  # noqa: ANN401
    """A clip without a finite number has its status, a wrong parameter its error, the others their findings."""
    mixed, wrong, good = model.execute(
        [Request(clips(tiny.RED, tiny.BLACK)), Request(clips(tiny.RED), '{"threshold": 2}'), Request(clips(tiny.BLUE))]
    )
    assert mixed.array("status").tolist() == [[0], [1]]
    assert mixed.array("num_detections").tolist() == [[2], [0]]
    assert (wrong.output_tensors, wrong.error) == ([], "parameters.threshold must be a number from 0 to 1, not 2")
    assert good.error is None
    broken = tiny.clip_of(tiny.RED, tiny.MAGENTA)[None]
    (response,) = model.execute([Request(broken)])
    assert "failed on 1 clip" in str(response.error)


@pytest.mark.fault("A2")
@pytest.mark.parametrize(
    ("dims", "said"),
    [((16, 32, 48, 3), "tiny.onnx takes [4, 32, 48, 3]"), ((4, 48, 32, 3), "tiny.onnx takes [4, 32, 48, 3]")],
)
def test_sides_that_are_not_the_models_are_refused(backend: ModuleType, dims: tuple[int, ...], said: str) -> None:
    """At the start, not with every request; sides that are left open are not."""
    made = backend.TritonPythonModel()
    with pytest.raises(Exception, match=re.escape(said)) as caught:
        made.initialize(arguments(*dims))
    assert type(caught.value).__name__ == "TritonModelException"
    made.initialize(arguments(-1, -1, -1, 3))
    made.finalize()


def test_a_configuration_that_cannot_be_used_is_told(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In Triton's log, as the reason why the model does not load."""
    monkeypatch.setenv("ZROACT_STAGE1__MODEL_PATH", str(tmp_path / "missing.onnx"))
    with pytest.raises(Exception, match=r"stage1\.model_path: .*missing\.onnx is no file"):
        backend.TritonPythonModel().initialize(arguments())


def test_the_configuration_names_the_protocols_tensors() -> None:
    """What the orchestrator sends and reads."""
    text = (FOLDER / "config.pbtxt").read_text(encoding="utf-8")
    assert re.findall(r'^name: "(\w+)"', text, re.MULTILINE) == ["yowov3"]
    assert re.findall(r'{ name: "(\w+)" data_type: (\w+) dims', text) == [
        ("clips", "TYPE_UINT8"),
        ("status", "TYPE_INT32"),
        ("num_detections", "TYPE_INT32"),
        ("boxes", "TYPE_FP32"),
        ("scores", "TYPE_FP32"),
    ]
