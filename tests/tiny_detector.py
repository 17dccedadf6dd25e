"""A detector file with YOWOv3's contract whose answer can be worked out by hand, built node by node.

It looks at colours only: the three scores of a box are the mean red, green and blue of the clip's **last** frame.
There are three candidates: one in the middle, nearly the same one a pixel further with 0.9 of its scores, and one at
the lower left, half outside the frame, with 0.6 of them. With more than three classes, red is the score of the first,
green of the second and blue of the last class, the others score nothing. Special colours make it misbehave: a black
last frame makes everything NaN, a white one only the third candidate, and a magenta first frame breaks the run itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

LABELS = ("red", "green", "blue")
CLIP_LENGTH, HEIGHT, WIDTH = 4, 32, 48

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
BLACK, WHITE, MAGENTA, ORANGE = (0, 0, 0), (255, 255, 255), (255, 0, 255), (255, 128, 0)

MIDDLE_BOX = (0.25, 0.375, 0.75, 0.625)
CORNER_BOX = (0.0, 0.8125, 0.25, 1.0)  # clipped to the frame at left and below
CORNER_SHARE = 0.6

_CANDIDATES = np.asarray([[24, 25, 4], [16, 16, 30], [24, 24, 16], [8, 8, 8]])  # rows cx, cy, w, h in pixels
_MEAN, _STD = np.asarray([0.485, 0.456, 0.406]), np.asarray([0.229, 0.224, 0.225])


def clip_of(last: Sequence[int], others: Sequence[int] | None = None) -> NDArray[np.uint8]:
    """`(T, H, W, 3)` uint8 RGB: a last frame of one colour, the frames before it of another."""
    clip = np.empty((CLIP_LENGTH, HEIGHT, WIDTH, 3), np.uint8)
    clip[:] = last if others is None else others
    clip[-1] = last
    return clip


def write_detector(
    path: Path,
    *,
    labels: Sequence[object] | None = LABELS,
    batch: int | str = "batch",
    half: bool = False,
    score_scale: float = 1.0,
    classes: int = 3,
    names: tuple[str, str] = ("frames", "found"),
    weights_beside: bool = False,
    free_sides: bool = False,
    classes_hidden: bool = False,
    only_one: bool = False,
) -> Path:
    """Write the file and return its path.

    Args:
        path: Where.
        labels: For the metadata; None leaves them out.
        batch: Size of the batch, or a name for a dynamic one.
        half: float16 instead of float32.
        classes: How many, 3 at least.
        names: Of the input and the output.
        weights_beside: Store the constants in a second file.
        score_scale: Factor on the scores; 20 makes them look as if the sigmoid had been forgotten.
        free_sides: T, H and W are dynamic and named in the metadata instead.
        classes_hidden: The output's middle side is left open.
        only_one: The file breaks on more than one clip, whatever it says of its batch.
    """
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    sides: list[int | str] = ["t", "h", "w"] if free_sides else [CLIP_LENGTH, HEIGHT, WIDTH]
    rows: int | str = "rows" if classes_hidden else 4 + classes
    graph = helper.make_graph(
        _renamed(_nodes(only_one=only_one) + _hiding(classes=classes_hidden), {"frames": names[0], "found": names[1]}),
        "tiny",
        [helper.make_tensor_value_info(names[0], kind, [batch, 3, *sides])],
        [helper.make_tensor_value_info(names[1], kind, [batch, rows, 3])],
        initializer=_constants(np.dtype(np.float16 if half else np.float32), score_scale, classes),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    metadata = {} if labels is None else {"labels": json.dumps(list(labels))}
    if free_sides:
        metadata |= {"clip_length": str(CLIP_LENGTH), "image_size": json.dumps([HEIGHT, WIDTH])}
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    onnx.save(model, path, save_as_external_data=weights_beside, location=f"{path.name}.data", size_threshold=70)
    return path


def _renamed(nodes: list[onnx.NodeProto], names: Mapping[str, str]) -> list[onnx.NodeProto]:
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return nodes


def _constants(kind: np.dtype[Any], score_scale: float, classes: int) -> list[onnx.TensorProto]:
    places = np.zeros((3, classes))
    places[[0, 1, 2], [0, 1, -1]] = 1
    values = {
        "mean": _MEAN[None].astype(kind),
        "std": _STD[None].astype(kind),
        "candidates": _CANDIDATES[None].astype(kind),
        "shares": (np.asarray([1, 0.9, CORNER_SHARE]) * score_scale)[None, None].astype(kind),
        "third": np.asarray([[[False, False, True]]]),
        "places": places.astype(kind),
        "row_ones": np.ones(4 + classes, kind),
        "zero": np.zeros(1, kind),
        "magenta": np.asarray([[0.5], [-0.5], [0.5]], kind),
        "slack": np.asarray(0.05, kind),
        "dark": np.asarray(-0.01, kind),
        "bright": np.asarray(2.9, kind),
        "last_index": np.asarray(-1, np.int64),
        "first_index": np.asarray(0, np.int64),
        "one_clip": np.asarray([1, 4 + classes, 3], np.int64),
        "axis_2": np.asarray([2], np.int64),
        "axis_1": np.asarray([1], np.int64),
    }
    return [numpy_helper.from_array(value, name) for name, value in values.items()]


def _nodes(*, only_one: bool) -> list[onnx.NodeProto]:
    def colour(frame: str) -> list[onnx.NodeProto]:
        """Mean colour `(B, 3)` in 0..1 of the first or last frame."""
        return [
            _node("Gather", f"frames {frame}_index", f"{frame}_frame", axis=2),
            _node("ReduceMean", f"{frame}_frame", f"{frame}_mean", axes=[2, 3], keepdims=0),
            _node("Mul", f"{frame}_mean std", f"{frame}_scaled"),
            _node("Add", f"{frame}_scaled mean", f"{frame}_colour"),
        ]

    return [
        *colour("first"),
        *colour("last"),
        # A magenta first frame gives index 1 of a list of one.
        _node("MatMul", "first_colour magenta", "magentaness"),
        _node("Add", "magentaness slack", "magenta_up"),
        _node("Floor", "magenta_up", "magenta_floor"),
        _node("Cast", "magenta_floor", "magenta_index", to=TensorProto.INT64),
        _node("Gather", "zero magenta_index", "nothing"),
        # The logarithm of a negative number is NaN, of others times zero nothing.
        _node("ReduceSum", "last_colour axis_1", "total", keepdims=1),
        _node("Add", "total dark", "not_black"),
        _node("Log", "not_black", "log_not_black"),
        _node("Mul", "log_not_black zero", "nan_if_black"),
        _node("Sub", "bright total", "not_white"),
        _node("Log", "not_white", "log_not_white"),
        _node("Mul", "log_not_white zero", "nan_if_white"),
        _node("Unsqueeze", "nan_if_white axis_2", "nan_if_white_3d"),
        _node("Where", "third nan_if_white_3d zero", "nan_third"),
        _node("Add", "nothing nan_if_black", "offset"),
        _node("Unsqueeze", "offset axis_2", "offset_3d"),
        _node("Add", "candidates offset_3d", "boxes"),
        _node("MatMul", "last_colour places", "last_scores"),
        _node("Unsqueeze", "last_scores axis_2", "colours"),
        _node("Mul", "colours shares", "shared"),
        _node("Add", "shared nan_third", "spoilt"),
        _node("Add", "spoilt offset_3d", "scores"),
        _node("Concat", "boxes scores", "all_rows" if not only_one else "rows_of_any", axis=1),
        *([_node("Reshape", "rows_of_any one_clip", "all_rows")] if only_one else []),
    ]


def _hiding(*, classes: bool) -> list[onnx.NodeProto]:
    """Pass the rows on; `classes` in a way whose shape nobody knows before it runs."""
    if not classes:
        return [_node("Identity", "all_rows", "found")]
    return [
        _node("ReduceMax", "nothing", "naught", keepdims=0),
        _node("Add", "row_ones naught", "ones"),
        _node("NonZero", "ones", "rows_2d"),
        _node("Squeeze", "rows_2d", "rows"),
        _node("Gather", "all_rows rows", "found", axis=1),
    ]


def _node(operator: str, inputs: str, output: str, **attributes: int | list[int]) -> onnx.NodeProto:
    made = helper.make_node(operator, inputs.split(), [output])
    made.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
    return made
