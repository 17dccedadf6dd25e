"""Stage 1 in the Open Inference Protocol: its metadata, its requests, its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from pipeline_ver2.config import Stage1Config
from pipeline_ver2.errors import RequestError
from pipeline_ver2.wire import OIP_HEAD_LENGTH_HEADER, pack_tensors, unpack_tensors
from serving.workers.postprocess import BOX_SIDES, ClipOutput
from serving.workers.stage1_engine import ModelInfo

MODEL_NAME = "yowov3"
MODEL_VERSION = "1"
OUTPUT_NAMES = ("status", "num_detections", "boxes", "scores")
STATUS_OK, STATUS_FAILED = 0, 1


class OipErrorReply(BaseModel):
    """The body of every refusal of this protocol."""

    error: str
    code: str
    retryable: bool
    type: str


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A checked request.

    Attributes:
        clips: `(B, T, H, W, 3)` uint8 RGB at the model's size, read-only.
        binary: The outputs wanted, in their order, and whether each goes as binary.
        request_id: Echoed in the reply.
    """

    clips: NDArray[np.uint8]
    threshold: float
    nms_iou: float
    binary: Mapping[str, bool]
    request_id: str | None


def server_metadata() -> dict[str, Any]:
    """Reply of `GET /v2`."""
    return {"name": "zroact-stage1", "version": MODEL_VERSION, "extensions": ["binary_tensor_data"]}


def model_metadata(info: ModelInfo, config: Stage1Config) -> dict[str, Any]:
    """Reply of `GET /v2/models/yowov3`."""
    height, width = info.image_size
    shapes: dict[str, tuple[str, list[int]]] = {
        "status": ("INT32", [-1, 1]),
        "num_detections": ("INT32", [-1, 1]),
        "boxes": ("FP32", [-1, -1, BOX_SIDES]),
        "scores": ("FP32", [-1, -1, len(info.labels)]),
    }
    parameters: dict[str, Any] = {
        "labels": list(info.labels),
        "clip_length": info.clip_length,
        "image_size": list(info.image_size),
        "max_batch": config.max_batch,
        "threshold": config.threshold,
        "nms_iou": config.nms_iou,
        "engine": info.platform,
        "provider": info.provider,
        "model_file": info.source,
        **info.details,
    }
    if info.note is not None:
        parameters["note"] = info.note
    return {
        "name": MODEL_NAME,
        "versions": [MODEL_VERSION],
        "platform": info.platform,
        "inputs": [{"name": "clips", "datatype": "UINT8", "shape": [-1, info.clip_length, height, width, 3]}],
        "outputs": [{"name": name, "datatype": kind, "shape": shape} for name, (kind, shape) in shapes.items()],
        "parameters": parameters,
    }


def model_config(info: ModelInfo, config: Stage1Config) -> dict[str, Any]:
    """Reply of `GET /v2/models/yowov3/config`, an extension of Triton's: sides without the batch."""
    described = model_metadata(info, config)

    def tensors(kind: str) -> list[dict[str, Any]]:
        return [
            {"name": tensor["name"], "data_type": f"TYPE_{tensor['datatype']}", "dims": tensor["shape"][1:]}
            for tensor in described[kind]
        ]

    return {
        "name": MODEL_NAME,
        "platform": info.platform,
        "max_batch_size": config.max_batch,
        "input": tensors("inputs"),
        "output": tensors("outputs"),
        "dynamic_batching": {"max_queue_delay_microseconds": round(config.max_wait_ms * 1e3)},
    }


def read_infer(
    body: bytes | memoryview, headers: Mapping[str, str], info: ModelInfo, config: Stage1Config
) -> InferRequest:
    """Read and check the body of an infer request.

    Raises:
        RequestError: It does not fit; the message says what was expected and what was found.
    """
    if headers.get("content-encoding", "identity") != "identity":
        raise RequestError("Content-Encoding: compressed bodies are not supported")
    tensors, head = unpack_tensors(body, _head_length(headers.get(OIP_HEAD_LENGTH_HEADER)), kind="inputs")
    if set(tensors) != {"clips"}:
        raise RequestError(f"inputs: expected one tensor named clips, found {', '.join(sorted(tensors)) or 'none'}")
    check_clips(tensors["clips"], info, config)
    parameters, request_id = head.get("parameters") or {}, head.get("id")
    if not isinstance(parameters, dict):
        raise RequestError("parameters must be an object")
    if request_id is not None and not isinstance(request_id, str):
        raise RequestError("id must be a string")
    return InferRequest(
        clips=tensors["clips"],
        threshold=fraction(parameters, "threshold", config.threshold),
        nms_iou=fraction(parameters, "nms_iou", config.nms_iou),
        binary=_wanted(head.get("outputs"), default=parameters.get("binary_data_output") is True),
        request_id=request_id,
    )


def check_clips(clips: NDArray[Any], info: ModelInfo, config: Stage1Config) -> None:
    """Check dtype, shape and number.

    Raises:
        RequestError: They do not fit the model.
    """
    height, width = info.image_size
    expected = f"UINT8 [B,{info.clip_length},{height},{width},3]"
    if clips.dtype != np.uint8 or clips.shape[1:] != (info.clip_length, height, width, 3):
        raise RequestError(f"clips: expected {expected}, found {clips.dtype.name} {list(clips.shape)}")
    check_count(len(clips), config)


def check_count(count: int, config: Stage1Config) -> None:
    """Check the number of clips of a request.

    Raises:
        RequestError: None, or over `stage1.max_batch`.
    """
    if not 1 <= count <= config.max_batch:
        raise RequestError(f"clips: {count} in one request, allowed are 1 to {config.max_batch} (stage1.max_batch)")


def tensors_of(outputs: Sequence[ClipOutput], *, least: int = 0) -> dict[str, NDArray[Any]]:
    """The four outputs: `status` and `num_detections` `(B, 1)` int32, `boxes` `(B, M, 4)` and `scores` `(B, M, C)`
    float32, zero-padded. M is the most boxes of a clip, `least` at the least.
    """
    most = max([least, *(len(output.findings.boxes) for output in outputs)])
    labels = outputs[0].findings.scores.shape[1]
    boxes = np.zeros((len(outputs), most, BOX_SIDES), np.float32)
    scores = np.zeros((len(outputs), most, labels), np.float32)
    for number, output in enumerate(outputs):
        found = len(output.findings.boxes)
        boxes[number, :found], scores[number, :found] = output.findings.boxes, output.findings.scores
    status = [[STATUS_OK if output.problem is None else STATUS_FAILED] for output in outputs]
    return {
        "status": np.asarray(status, np.int32),
        "num_detections": np.asarray([[len(output.findings.boxes)] for output in outputs], np.int32),
        "boxes": boxes,
        "scores": scores,
    }


def write_infer(request: InferRequest, outputs: Sequence[ClipOutput]) -> tuple[bytes, dict[str, str], str]:
    """The reply's `(body, headers, media type)`. Why a clip failed stands in the parameters, for people."""
    tensors = tensors_of(outputs)
    problems = {str(number): output.problem for number, output in enumerate(outputs) if output.problem is not None}
    parts, head_length = pack_tensors(
        {name: tensors[name] for name in request.binary},
        kind="outputs",
        parameters={"nonfinite_dropped": sum(output.nonfinite for output in outputs), "problems": problems},
        head={
            "model_name": MODEL_NAME,
            "model_version": MODEL_VERSION,
            **({"id": request.request_id} if request.request_id else {}),
        },
        as_json=[name for name, binary in request.binary.items() if not binary],
    )
    if not any(request.binary.values()):
        return b"".join(parts), {}, "application/json"
    return b"".join(parts), {OIP_HEAD_LENGTH_HEADER: str(head_length)}, "application/octet-stream"


def _head_length(value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or len(value) > 18:
        raise RequestError(f"{OIP_HEAD_LENGTH_HEADER} must be a whole number, not {value[:40]!r}")
    return int(value)


def fraction(parameters: Mapping[str, Any], key: str, default: float) -> float:
    """A parameter of a request that is a number from 0 to 1.

    Raises:
        RequestError: It is something else.
    """
    value = parameters.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise RequestError(f"parameters.{key} must be a number from 0 to 1, not {str(value)[:40]}")
    return float(value)


def _wanted(outputs: object, *, default: bool) -> dict[str, bool]:
    """Names of the outputs to send and whether each is binary; no selection means all of them."""
    if not outputs:
        return dict.fromkeys(OUTPUT_NAMES, default)
    if not isinstance(outputs, list) or not all(isinstance(entry, dict) for entry in outputs):
        raise RequestError("outputs must be a list of tensors")
    wanted: dict[str, bool] = {}
    for entry in outputs:
        name, parameters = entry.get("name"), entry.get("parameters") or {}
        if name not in OUTPUT_NAMES or name in wanted or not isinstance(parameters, dict):
            raise RequestError(f"outputs: {str(name)[:40]!r} must be one of {', '.join(OUTPUT_NAMES)}, each once")
        wanted[name] = parameters.get("binary_data", default) is True
    return wanted
