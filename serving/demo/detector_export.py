"""Writes the detector as ONNX, as the Stage 1 daemon loads it, and checks it against PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from pipeline_ver2.errors import ConfigError
from serving.demo.detector import CLIP_LENGTH, SIDE, Detector
from serving.demo.skeleton import LABELS

OPSET = 18
TOLERANCE = 1e-3
_MOST_CLIPS = 64


def export(model: Detector, path: Path) -> None:
    """Write a model to one ONNX file whose number of clips is free.

    Its metadata names `labels` (JSON list), `clip_length`, `image_size` (JSON `[height, width]`) and `keyframe`.
    """
    model = model.eval()
    example = torch.zeros(2, 3, CLIP_LENGTH, SIDE, SIDE)
    program = torch.onnx.export(
        model,
        (example,),
        dynamo=True,
        opset_version=OPSET,
        input_names=["clip"],
        output_names=["output"],
        dynamic_shapes={"clip": {0: torch.export.Dim("batch", min=1, max=_MOST_CLIPS)}},
        verbose=False,
    )
    if program is None:
        raise ConfigError("the exporter returned no program")
    proto = _slim(program.model_proto)
    described = {"labels": LABELS, "clip_length": CLIP_LENGTH, "image_size": [SIDE, SIDE]}
    metadata = {name: json.dumps(value) for name, value in described.items()} | {"keyframe": "last"}
    onnx.helper.set_model_props(proto, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(proto, str(path))


def _slim(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Without what the exporter notes for debugging at each node: stack traces with paths, and shapes."""
    for node in proto.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        value.ClearField("metadata_props")
    proto.graph.ClearField("metadata_props")
    proto.graph.ClearField("value_info")
    return proto


def difference(model: Detector, path: Path, batch: int) -> float:
    """Largest absolute difference between ONNX Runtime and PyTorch over boxes (pixels) and scores, random clips."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    clips = torch.randn(batch, 3, CLIP_LENGTH, SIDE, SIDE, generator=torch.Generator().manual_seed(batch))
    with torch.inference_mode():
        expected: NDArray[np.float32] = model.eval()(clips).numpy()
    found: NDArray[np.float32] = session.run(None, {"clip": clips.numpy()})[0]
    return float(np.abs(expected - found).max())


def check(model: Detector, path: Path) -> None:
    """Check an exported file at batch sizes 1, 3 and 4.

    Raises:
        ConfigError: The file answers otherwise than the model.
    """
    for batch in (1, 3, 4):
        apart = difference(model, path, batch)
        if not apart <= TOLERANCE:
            raise ConfigError(f"{path}: differs by {apart:.2g} from PyTorch at batch {batch}")
