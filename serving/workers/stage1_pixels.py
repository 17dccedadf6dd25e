"""From the pixels of a clip to what the model was trained on: scaled to 0..1, then by ImageNet's mean and deviation.

Normally the scaling is fused into the model (`fuse`): the session takes planes of uint8, so that only bytes travel to
an accelerator and its threads share the arithmetic. `preprocess` is the same in numpy, for files that cannot be fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serving.workers.stage1_contract import Contract

PIXELS = "zroact_pixels"
"""Name of the fused model's input."""

_MEAN = np.asarray([0.485, 0.456, 0.406])  # of ImageNet, RGB
_STD = np.asarray([0.229, 0.224, 0.225])


def preprocess(clips: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale to 0..1, then by ImageNet's mean and deviation.

    Args:
        clips: `(B, T, H, W, 3)` uint8 RGB.

    Returns:
        `(B, 3, T, H, W)` float32, channels in the order R, G, B.
    """
    count, length, height, width, _ = clips.shape
    batch = np.empty((count, 3, length, height, width), np.float32)
    for clip, out in zip(clips, batch, strict=True):
        normalise_into(clip, out)
    return batch


def normalise_into(clip: NDArray[np.uint8], out: NDArray[np.floating]) -> None:
    """Write a clip `(T, H, W, 3)` uint8 RGB into `(3, T, H, W)` float32 or float16, normalised."""
    table = ((np.arange(256)[:, None] / 255 - _MEAN) / _STD).astype(out.dtype)
    for channel in range(3):
        # mode="clip" lets numpy write straight into `out`; uint8 cannot be out of range
        np.take(table[:, channel].copy(), clip[..., channel], out=out[channel], mode="clip")


def planes_into(clip: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Copy a clip `(T, H, W, 3)` uint8 RGB into planes `(3, T, H, W)`. OpenCV does it twenty times as fast as numpy."""
    length, height, width, _ = clip.shape
    planes = [out[channel].reshape(length * height, width) for channel in range(3)]
    cv2.split(clip.reshape(length * height, width, 3), planes)


def fuse(model: onnx.ModelProto, contract: Contract) -> bytes:
    """The model with scaling in front, serialised: its one input is `PIXELS`, uint8 planes `(B, 3, T, H, W)`, RGB.

    Weights that lie beside the file still do. The scaling is done in float32 whatever the model's precision is.

    Raises:
        ValueError: Too large for one message.
    """
    fused = onnx.ModelProto()
    fused.CopyFrom(model)
    graph = fused.graph
    batch = "batch" if contract.batch is None else contract.batch
    shape: Sequence[int | str] = [batch, 3, contract.clip_length, *contract.image_size]
    others = [value for value in graph.input if value.name != contract.input.name]
    nodes = [*_scaling(contract), *graph.node]
    del graph.input[:], graph.node[:]
    graph.input.extend([helper.make_tensor_value_info(PIXELS, TensorProto.UINT8, shape), *others])
    graph.node.extend(nodes)
    graph.initializer.extend([_constant("scale", 1 / (255 * _STD)), _constant("shift", -_MEAN / _STD)])
    return bytes(fused.SerializeToString())


def _scaling(contract: Contract) -> list[onnx.NodeProto]:
    half = contract.input.dtype == np.float16
    levels, scaled, last = (f"{PIXELS}_{name}" for name in ("levels", "scaled", "shifted"))
    nodes = [
        helper.make_node("Cast", [PIXELS], [levels], to=TensorProto.FLOAT),
        helper.make_node("Mul", [levels, f"{PIXELS}_scale"], [scaled]),
        helper.make_node("Add", [scaled, f"{PIXELS}_shift"], [last if half else contract.input.name]),
    ]
    if half:
        nodes.append(helper.make_node("Cast", [last], [contract.input.name], to=TensorProto.FLOAT16))
    return nodes


def _constant(name: str, values: NDArray[Any]) -> onnx.TensorProto:
    return numpy_helper.from_array(values.astype(np.float32).reshape(1, 3, 1, 1, 1), f"{PIXELS}_{name}")
