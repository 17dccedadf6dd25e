"""Writes a network as ONNX and compares the file with it."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnxruntime.transformers.float16 import convert_float_to_float16

from pipeline_ver2.errors import ConfigError
from serving.yowov3.checkout import told
from serving.yowov3.settings import Settings

logger = logging.getLogger(__name__)

OPSET = 18
BATCHES = (1, 3)
# Of the input's side for boxes, of 1 for scores. In float16 a box side of 224 px is known to 0.125 px.
TOLERANCE, TOLERANCE_HALF = 1e-4, 1e-2
_BOX_SIDES = 4
_MOST_CLIPS = 64
_INPUT, _OUTPUT = "clips", "output"


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest differences between the file and the network, of box sides in pixels of the input and of scores."""

    batch: int
    box_px: float
    score: float


def to_onnx(network: torch.nn.Module, settings: Settings, *, half: bool) -> onnx.ModelProto:
    """The network with a free number of clips, and what Stage 1 must know of it in its metadata.

    Args:
        network: From clips `(B, 3, T, H, W)` float32 to `(B, 4 + C, N)`.
        settings: What it was built from.
        half: Weights, input and output in float16.

    Raises:
        ConfigError: It does not run, its output is another, or it cannot be exported.
    """
    expected = _run(network, _random_clips(2, settings), settings)
    with warnings.catch_warnings():
        # What exporters remark on a network's code is for its authors; whether the file is right is compared.
        warnings.simplefilter("ignore")
        proto = _exported(network, torch.zeros(2, 3, settings.clip_length, settings.side, settings.side))
        if half:
            proto = convert_float_to_float16(proto)
    _describe(proto, settings, boxes=expected.shape[2])
    return proto


def differences(network: torch.nn.Module, proto: onnx.ModelProto, settings: Settings) -> list[Difference]:
    """Compare file and network on random clips, once for each of `BATCHES`.

    Raises:
        ConfigError: The file does not run, or differs by more than its precision explains.
    """
    half = proto.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    tolerance = TOLERANCE_HALF if half else TOLERANCE
    session = _session(proto)
    found = [_difference(network, session, settings, batch, half=half) for batch in BATCHES]
    for each in found:
        if not (each.box_px <= tolerance * settings.side and each.score <= tolerance):  # NaN is no agreement
            raise ConfigError(
                f"the file differs from the network at batch {each.batch}: boxes by {each.box_px:.2g} px, scores by "
                f"{each.score:.2g}; allowed are {tolerance * settings.side:.2g} px and {tolerance:g}"
                + ("; try without --fp16" if half else "")
            )
    return found


def _exported(network: torch.nn.Module, example: torch.Tensor) -> onnx.ModelProto:
    try:
        return _by_torch_export(network, example)
    except Exception as error:  # noqa: BLE001 - the exporters' errors have no base; the other exporter may do it
        logger.warning("torch.export could not do it, trying the TorchScript exporter: %s", told(error))
    try:
        return _by_torchscript(network, example)
    except Exception as error:  # the exporters' errors have no base of their own
        raise ConfigError(
            f"the network cannot be exported to ONNX: {told(error)}. In the checkout, write the operation named here "
            "with others that ONNX has, then try again; the weights stay as they are"
        ) from error


def _by_torch_export(network: torch.nn.Module, example: torch.Tensor) -> onnx.ModelProto:
    program = torch.onnx.export(
        network,
        (example,),
        dynamo=True,
        opset_version=OPSET,
        input_names=[_INPUT],
        output_names=[_OUTPUT],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=_MOST_CLIPS)},),
        verbose=False,
    )
    if program is None:
        raise ConfigError("the exporter returned no program")
    proto = program.model_proto
    for node in proto.graph.node:
        node.ClearField("metadata_props")  # stack traces with the user's paths
    return proto


def _by_torchscript(network: torch.nn.Module, example: torch.Tensor) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "traced.onnx"
        torch.onnx.export(
            network,
            (example,),
            file,
            dynamo=False,
            opset_version=OPSET,
            input_names=[_INPUT],
            output_names=[_OUTPUT],
            dynamic_axes={_INPUT: {0: "batch"}, _OUTPUT: {0: "batch"}},
        )
        return onnx.load_model(file)


def _describe(proto: onnx.ModelProto, settings: Settings, *, boxes: int) -> None:
    """Metadata under the names that the daemon reads, and the output's shape, which one exporter leaves open."""
    facts = {
        "labels": list(settings.labels),
        "clip_length": settings.clip_length,
        "image_size": [settings.side, settings.side],
    }
    onnx.helper.set_model_props(proto, {key: json.dumps(value) for key, value in facts.items()} | {"keyframe": "last"})
    sides = proto.graph.output[0].type.tensor_type.shape.dim
    sides[1].dim_value, sides[2].dim_value = _BOX_SIDES + len(settings.labels), boxes


def _random_clips(batch: int, settings: Settings) -> torch.Tensor:
    """Clips `(batch, 3, T, H, W)` float32 of noise in the range of normalised pixels."""
    shape = (batch, 3, settings.clip_length, settings.side, settings.side)
    return torch.randn(shape, generator=torch.Generator().manual_seed(batch))


def _run(network: torch.nn.Module, clips: torch.Tensor, settings: Settings) -> torch.Tensor:
    rows = _BOX_SIDES + len(settings.labels)
    try:
        with torch.no_grad():
            output = network(clips)
    except Exception as error:  # whatever somebody else's code raises
        raise ConfigError(f"the network does not run on clips {list(clips.shape)}: {told(error)}") from error
    shape = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if not isinstance(output, torch.Tensor) or output.ndim != 3 or output.shape[:2] != (len(clips), rows):
        raise ConfigError(f"the network's output is {shape}, expected [{len(clips)}, {rows}, N]")
    scores = output[:, _BOX_SIDES:]
    if not (scores.min() >= 0 and scores.max() <= 1):
        raise ConfigError(f"the network's scores reach from {scores.min():.3g} to {scores.max():.3g}, not from 0 to 1")
    return output


def _session(proto: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        raise ConfigError(f"ONNX Runtime does not load the exported network: {told(error)}") from error


def _difference(
    network: torch.nn.Module, session: ort.InferenceSession, settings: Settings, batch: int, *, half: bool
) -> Difference:
    clips = _random_clips(batch, settings)
    expected = _run(network, clips, settings).numpy()
    given = clips.numpy().astype(np.float16 if half else np.float32)
    try:
        found = np.asarray(session.run(None, {_INPUT: given})[0], np.float32)
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        raise ConfigError(f"the exported network does not run on {batch} clip(s): {told(error)}") from error
    if found.shape != expected.shape:
        raise ConfigError(f"the exported network gives {found.shape} for {batch} clip(s), expected {expected.shape}")
    apart = np.abs(found - expected)
    return Difference(batch, float(apart[:, :_BOX_SIDES].max()), float(apart[:, _BOX_SIDES:].max()))
