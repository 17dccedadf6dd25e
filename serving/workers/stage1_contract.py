"""What a YOWOv3 export looks like inside: read from the ONNX file before anything is loaded, and checked.

One input `[B,3,T,H,W]` and one output `[B,4+C,N]`, each float32 or float16, whatever their names are. The upstream
exporter writes a batch of 1; a fixed batch of another size and a free one are as good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from pipeline_ver2.config import Stage1Config
from pipeline_ver2.errors import ConfigError
from serving.workers.postprocess import BOX_SIDES

Shape = tuple[int | str, ...]

_FLOATS: Mapping[int, np.dtype[Any]] = {
    onnx.TensorProto.FLOAT: np.dtype(np.float32),
    onnx.TensorProto.FLOAT16: np.dtype(np.float16),
}
_INPUT = "expected one input [B,3,T,H,W] of float32 or float16"
_OUTPUT = "expected one output [B,4+C,N] of float32 or float16"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output. Sides nobody fixed are strings; no shape at all is None."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None

    def told(self) -> dict[str, Any]:
        """For people."""
        shape = None if self.shape is None else list(self.shape)
        return {"name": self.name, "precision": self.dtype.name, "shape": shape}


@dataclass(frozen=True, slots=True)
class Contract:
    """What was found. `batch` is the number of clips the file is fixed at, None if free; `image_size` (height, width).

    `classes` is None if only a run can tell.
    """

    input: Tensor
    output: Tensor
    batch: int | None
    clip_length: int
    image_size: tuple[int, int]
    classes: int | None


def read_model(path: Path) -> onnx.ModelProto:
    """The graph of a file, without weights that lie beside it.

    Raises:
        ConfigError: It is no ONNX file.
    """
    if not path.is_file():
        raise ConfigError(f"stage1.model_path: {path} is no file")
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except OSError as error:
        raise ConfigError(f"stage1.model_path: {path} cannot be loaded: {error}") from error
    except Exception as error:  # protobuf's error for noise, whose class it does not publish with types
        raise ConfigError(f"stage1.model_path: {path} cannot be loaded: no ONNX file: {error}") from error
    if not model.graph.node:
        raise ConfigError(f"stage1.model_path: {path} cannot be loaded: it holds no ONNX graph")
    return model


def metadata_of(model: onnx.ModelProto) -> dict[str, str]:
    """The properties of the file."""
    return {entry.key: entry.value for entry in model.metadata_props}


def read_contract(model: onnx.ModelProto, config: Stage1Config) -> Contract:
    """Check inputs and outputs.

    Sides of the input that the file leaves open are taken from its metadata (`clip_length`, `image_size`), else from
    the configuration.

    Raises:
        ConfigError: The file is no YOWOv3 export; the message says what was expected and what was found.
    """
    weights = {tensor.name for tensor in model.graph.initializer}  # old files list them among the inputs
    given = _only([value for value in model.graph.input if value.name not in weights], _INPUT, rank=5)
    output = _only(list(model.graph.output), _OUTPUT, rank=3)
    if given.shape is None or given.shape[1] != 3:
        raise ConfigError(f"stage1.model_path: {_INPUT}, found {_said(given)}")
    length, image_size = _sides(given.shape[2:], metadata_of(model), config)
    batch, rows = given.shape[0], None if output.shape is None else output.shape[1]
    if isinstance(rows, int) and rows <= BOX_SIDES:
        raise ConfigError(f"stage1.model_path: {_OUTPUT}, found {_said(output)}: no classes beside the box")
    return Contract(
        input=given,
        output=output,
        batch=batch if isinstance(batch, int) else None,
        clip_length=length,
        image_size=image_size,
        classes=rows - BOX_SIDES if isinstance(rows, int) else None,
    )


def _only(values: list[onnx.ValueInfoProto], expected: str, rank: int) -> Tensor:
    if len(values) != 1:
        names = ", ".join(value.name for value in values[:5]) or "none"
        raise ConfigError(f"stage1.model_path: {expected}, found {len(values)}: {names}")
    kind = values[0].type.tensor_type
    sides = [side.dim_value if side.HasField("dim_value") else side.dim_param or "?" for side in kind.shape.dim]
    shape = tuple(sides) if kind.HasField("shape") else None
    dtype = _FLOATS.get(kind.elem_type)
    found = f"{values[0].name} {onnx.TensorProto.DataType.Name(kind.elem_type)} {shape and list(shape)}"
    if dtype is None or (shape is not None and len(shape) != rank):
        raise ConfigError(f"stage1.model_path: {expected}, found {found}")
    if any(isinstance(side, int) and side < 1 for side in shape or ()):
        raise ConfigError(f"stage1.model_path: {expected}, found {found}: a side of no length")
    return Tensor(values[0].name, dtype, shape)


def _said(tensor: Tensor) -> str:
    return f"{tensor.name} {tensor.dtype.name} {tensor.shape and list(tensor.shape)}"


def _sides(shape: Shape, metadata: Mapping[str, str], config: Stage1Config) -> tuple[int, tuple[int, int]]:
    """`(clip_length, (height, width))`."""
    told = [_metadata_json(metadata, "clip_length"), *_pair(_metadata_json(metadata, "image_size"))]
    wanted = [config.clip_length, *(config.image_size or (None, None))]
    sides = [
        next((value for value in (fixed, known, asked) if type(value) is int and value > 0), None)
        for fixed, known, asked in zip(shape, told, wanted, strict=True)
    ]
    length, height, width = sides
    if length is None or height is None or width is None:
        raise ConfigError(
            f"stage1.image_size: must be set, since the model's input leaves {list(shape)} open and its metadata "
            "(clip_length, image_size) does not name them"
        )
    if length != config.clip_length:
        raise ConfigError(f"stage1.clip_length: {config.clip_length}, but the model takes clips of {length} frames")
    if config.image_size not in {None, (height, width)}:
        raise ConfigError(f"stage1.image_size: {list(config.image_size or ())}, but the model takes {[height, width]}")
    return length, (height, width)


def _pair(value: object) -> tuple[object, object]:
    return (value[0], value[1]) if isinstance(value, list) and len(value) == 2 else (None, None)


def _metadata_json(metadata: Mapping[str, str], key: str) -> object:
    try:
        value: object = json.loads(metadata.get(key, "null"))
    except ValueError as error:
        raise ConfigError(f"stage1.model_path: the `{key}` of its metadata is not valid JSON: {error}") from error
    return value
