"""All that crosses a wire: header names, JSON models of the people's contracts, and OIP tensor framing.

Machines speak the Open Inference Protocol (KServe/Triton v2) to Stage 1, with the binary tensor extension:
https://github.com/kserve/open-inference-protocol and Triton's ``extension_binary_data``. An OIP body is a JSON
head followed by the raw little-endian bytes of the tensors, in the order of the head;
``Inference-Header-Content-Length`` says where the head ends.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pydantic_core
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from pipeline_ver2.errors import AnswerError, RequestError, ZroactError

DEADLINE_HEADER = "X-Zroact-Deadline-Ms"
CLIENT_HEADER = "X-Zroact-Client"
IDEMPOTENCY_HEADER = "Idempotency-Key"
SERVER_TIMING_HEADER = "Server-Timing"
OIP_HEAD_LENGTH_HEADER = "Inference-Header-Content-Length"

_FIELD = re.compile(r"[A-Za-z_][\w.]*(?=: )")

OIP_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}


_LONGEST_NAME, _MOST_SIDES, _LONGEST_SIDE = 200, 32, 2**63


class WireModel(BaseModel):
    """Base of the JSON bodies: unknown fields are refused, NaN and infinity too."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Number = Annotated[float, Field(strict=True)]
Whole = Annotated[int, Field(strict=True)]


class LabelScore(WireModel):
    """One action of a detected person, with its score in 0..1."""

    name: str
    score: Number


class Detection(WireModel):
    """One person: box in pixels of the upright source frame, (x1, y1, x2, y2), and every label over the threshold."""

    box: tuple[Number, Number, Number, Number]
    labels: tuple[LabelScore, ...]


class DetectClip(WireModel):
    """One clip for `/detect`: paths of its frames, or the frames as base64 JPEG or PNG, oldest first."""

    clip_id: str
    key_index: Whole | None = None
    frame_paths: tuple[str, ...] | None = None
    frames: tuple[str, ...] | None = None


class DetectRequest(WireModel):
    """Body of `POST /detect`."""

    clips: tuple[DetectClip, ...] = Field(min_length=1)
    threshold: Number | None = Field(default=None, ge=0, le=1)


class DetectResult(WireModel):
    """What `/detect` says of one clip; a failed clip carries its `error` and fails alone."""

    clip_id: str
    key_index: int | None
    state: Literal["ok", "failed"]
    error: str | None = None
    detections: tuple[Detection, ...] = ()
    inference_ms: float | None = None


class DetectReply(WireModel):
    """Reply of `POST /detect`, one result per clip in the order of the request."""

    results: tuple[DetectResult, ...]


class EvaluateImage(WireModel):
    """One image for `/evaluate`: base64 JPEG or PNG, or a path under a media root, and its time in the source."""

    data: str | None = None
    path: str | None = None
    time_s: Number


class EvaluateRequest(WireModel):
    """Body of `POST /evaluate`. `detections` holds Stage 1's findings, one list per image.

    `labels` are the actions the answer may name. They can be left out if `schema` is given, or if the embedded demo
    model is served, whose labels are known.
    """

    slot_id: str
    images: tuple[EvaluateImage, ...] = Field(min_length=1, max_length=16)
    detections: tuple[tuple[Detection, ...], ...] = ()
    labels: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=1000)
    prompt: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class EvaluateReply(WireModel):
    """Reply of `POST /evaluate`."""

    slot_id: str
    answer: dict[str, Any]
    confidence: float | None
    finish_reason: str
    raw_text: str
    usage: dict[str, Any] | None
    queue_wait_ms: float | None
    inference_ms: float | None
    attempts: int


def job_headers(key: str) -> dict[str, str]:
    """Headers of one piece of a job, `job/slot` or `job/batch`: repeats are recognised, and jobs take turns."""
    return {IDEMPOTENCY_HEADER: key, CLIENT_HEADER: key.partition("/")[0]}


def server_timing(queue_s: float, run_s: float) -> str:
    """The `Server-Timing` value both daemons send; durations in milliseconds, as the W3C draft defines."""
    return f"queue;dur={queue_s * 1e3:.3f}, run;dur={run_s * 1e3:.3f}"


def parse_server_timing(value: str | None) -> tuple[float | None, float | None]:
    """`(queue_s, run_s)` of a `Server-Timing` value; None for what is absent or malformed."""
    found: dict[str, float] = {}
    for entry in (value or "").split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, number = parameter.partition("=")
            try:
                seconds = float(number) / 1e3
            except ValueError:
                continue
            if key == "dur" and math.isfinite(seconds):
                found[name] = seconds
    return found.get("queue"), found.get("run")


def error_body(error: ZroactError) -> dict[str, Any]:
    """The JSON every server of this project sends for an error of the tree; OpenAI clients understand it too."""
    kind = "invalid_request_error" if isinstance(error, RequestError) else "server_error"
    detail = {"code": error.code, "message": str(error), "retryable": error.retryable, "type": kind}
    # OpenAI's word for the field that is to blame; our messages begin with it where there is one.
    named = _FIELD.match(str(error)) if isinstance(error, RequestError) else None
    detail["param"] = None if named is None else named.group()
    if isinstance(error, AnswerError):
        detail["raw_text"] = error.raw_text
    return {"error": detail}


def oip_error_body(error: ZroactError) -> dict[str, Any]:
    """The same for the Open Inference Protocol, whose `error` is the message itself; the rest stands beside it."""
    detail = error_body(error)["error"]
    del detail["param"]
    return {"error": detail.pop("message"), **detail}


def pack_tensors(
    tensors: Mapping[str, NDArray[Any]],
    *,
    kind: Literal["inputs", "outputs"],
    parameters: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
    as_json: Collection[str] = (),
) -> tuple[list[bytes | memoryview], int]:
    """Frame named tensors as an OIP body with the binary extension.

    Args:
        tensors: Name to array; any shape, dtypes of `OIP_DTYPES`.
        kind: "inputs" for a request, "outputs" for a reply.
        parameters: Request-level parameters.
        head: Further members of the JSON head, such as `id` or `model_name`.
        as_json: Names of tensors to write into the JSON head instead; they must be finite.

    Returns:
        `(parts, head_length)`: the pieces of the body, not joined so that pixels are not copied, and the length
        of the JSON head in bytes for the `Inference-Header-Content-Length` header.
    """
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    described = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": oip_datatype(array.dtype),
            **(
                {"data": array.reshape(-1).tolist()}
                if name in as_json
                else {"parameters": {"binary_data_size": array.nbytes}}
            ),
        }
        for name, array in contiguous.items()
    ]
    content: dict[str, Any] = {**(head or {}), kind: described}
    if parameters:
        content["parameters"] = dict(parameters)
    if kind == "inputs":
        content["parameters"] = {**content.get("parameters", {}), "binary_data_output": True}
    encoded = json.dumps(content, allow_nan=False).encode()
    pixels = (array.reshape(-1).view(np.uint8).data for name, array in contiguous.items() if name not in as_json)
    return [encoded, *pixels], len(encoded)


def unpack_tensors(
    body: bytes | memoryview, head_length: int | None, *, kind: Literal["inputs", "outputs"]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read an OIP body, JSON or binary.

    Args:
        body: The whole body.
        head_length: Value of `Inference-Header-Content-Length`; None when the whole body is JSON.
        kind: "inputs" for a request, "outputs" for a reply.

    Returns:
        `(tensors, head)`: read-only arrays by name (views of `body` where it was binary) and the JSON head.

    Raises:
        RequestError: The head is no JSON object, or a tensor's name, datatype, shape or size does not fit.
    """
    view = memoryview(body)
    if head_length is not None and not 0 < head_length <= len(view):
        raise RequestError(f"{OIP_HEAD_LENGTH_HEADER} is {head_length}, the body has {len(view)} bytes")
    head = _json_object(view if head_length is None else view[:head_length])
    rest = view[len(view) if head_length is None else head_length :]
    entries = head.get(kind)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RequestError(f"{kind} must be a list of tensors")
    tensors: dict[str, NDArray[Any]] = {}
    for entry in entries:
        name, array, used = _read_tensor(entry, rest)
        if name in tensors:
            raise RequestError(f"tensor {name} is there twice")
        tensors[name] = array
        rest = rest[used:]
    if len(rest):
        raise RequestError(f"{len(rest)} bytes follow the last binary tensor")
    return tensors, head


def oip_datatype(dtype: np.dtype[Any]) -> str:
    """The OIP name of a numpy dtype.

    Raises:
        RequestError: The dtype has no OIP name here.
    """
    for name, known in OIP_DTYPES.items():
        if known == dtype:
            return name
    raise RequestError(f"dtype {dtype} has no Open Inference Protocol name here; known: {', '.join(OIP_DTYPES)}")


def read_json(body: bytes | memoryview) -> Any:  # noqa: ANN401 - any JSON
    """The content of a JSON body in UTF-8.

    Raises:
        RequestError: It is none, or has text that is no Unicode: half a surrogate pair, which no reply could repeat.
    """
    try:
        return pydantic_core.from_json(bytes(body))
    except ValueError as error:
        raise RequestError(f"body: not valid JSON: {error}") from error


def _json_object(view: memoryview) -> dict[str, Any]:
    head = read_json(view)
    if not isinstance(head, dict):
        raise RequestError("the inference head must be a JSON object")
    return head


def _read_tensor(entry: Mapping[str, Any], rest: memoryview) -> tuple[str, NDArray[Any], int]:
    name, datatype = entry.get("name"), entry.get("datatype")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise RequestError(f"a tensor has no name of at most {_LONGEST_NAME} characters")
    if not isinstance(datatype, str) or datatype not in OIP_DTYPES:
        raise RequestError(f"tensor {name}: datatype {str(datatype)[:40]!r} is not one of {', '.join(OIP_DTYPES)}")
    shape = _shape(name, entry.get("shape"))
    dtype, count = OIP_DTYPES[datatype], math.prod(shape)
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError(f"tensor {name}: its parameters must be an object")
    size = parameters.get("binary_data_size")
    if size is None:
        return name, _from_json(name, entry.get("data"), dtype, shape), 0
    if type(size) is not int or size != count * dtype.itemsize:
        needed = f"shape {_shown(shape)} needs {count * dtype.itemsize}"
        raise RequestError(f"tensor {name}: binary_data_size is {str(size)[:40]}, {needed}")
    if size > len(rest):
        raise RequestError(f"tensor {name}: the body ends {size - len(rest)} bytes early")
    try:
        return name, np.frombuffer(rest[:size], dtype=dtype).reshape(shape), size
    except (ValueError, OverflowError) as error:
        raise RequestError(f"tensor {name}: shape {_shown(shape)} cannot be used: {error}") from error


def _shape(name: str, shape: object) -> tuple[int, ...]:
    # Bounds, so that their product is worked out in no time.
    if (
        not isinstance(shape, list)
        or len(shape) > _MOST_SIDES
        or not all(type(side) is int and 0 <= side < _LONGEST_SIDE for side in shape)
    ):
        said = f"must be a list of at most {_MOST_SIDES} whole numbers from 0 up"
        raise RequestError(f"tensor {name}: shape {_shown(shape)} {said}")
    return tuple(shape)


def _shown(shape: object) -> str:
    """A shape for a message, without writing all of it out first: it may have any number of sides."""
    return str(list(shape[:_MOST_SIDES]) if isinstance(shape, list | tuple) else shape)[:80]


def _from_json(name: str, data: object, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    said = f"tensor {name}: data does not fit {dtype.name} of shape {_shown(shape)}"
    try:
        given = np.asarray(data).reshape(shape)
        with np.errstate(invalid="ignore", over="ignore"):
            array = given.astype(dtype, casting="unsafe")
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{said}: {str(error)[:200]}") from error
    if given.dtype.kind not in "biuf" or (dtype.kind in "biu" and not np.array_equal(given, array)):
        raise RequestError(f"{said}: not all its values are numbers of that type")
    return array
