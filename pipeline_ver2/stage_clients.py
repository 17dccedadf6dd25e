"""aiohttp clients of the two stages: deadlines, waiting for a stage that is away, error mapping.

What counts as *waiting* (a refused connection, 429, a 503 of a stage that is not ready) is repeated here within
`retry_for_s`. What counts as a *send* (a lost connection, a time-out, a broken reply) is raised to whoever counts.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import numpy as np
import stamina
from numpy.typing import NDArray

from pipeline_ver2 import wire
from pipeline_ver2.config import PipelineConfig, Stage1Config, Stage2Config
from pipeline_ver2.errors import (
    BadReply,
    ConfigError,
    DeadlineShed,
    EngineFailed,
    QueueFull,
    RequestError,
    StageError,
    StageTimeout,
    StageUnreachable,
)
from pipeline_ver2.findings import ClipFindings, read_findings
from pipeline_ver2.prompts import Asked, Question, ask

MODEL = "yowov3"

_CONNECT_TIMEOUT_S = 5.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_MIB = 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How long a request took from its sending to its whole reply, and what the stage says of it; seconds."""

    total_s: float
    queue_s: float | None
    run_s: float | None


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP reply with its whole body."""

    headers: Mapping[str, str]
    body: bytes
    times: StageTimes

    def json(self) -> dict[str, Any]:
        """The body as a JSON object.

        Raises:
            BadReply: It is none.
        """
        try:
            content = json.loads(self.body)
        except ValueError as error:
            raise BadReply(f"the reply is not valid JSON: {error}") from error
        if not isinstance(content, dict):
            raise BadReply("the reply is not a JSON object")
        return content


@dataclass(frozen=True, slots=True)
class DetectorInfo:
    """What Stage 1 says of its model. `image_size` is (height, width)."""

    name: str
    engine: str
    labels: tuple[str, ...]
    clip_length: int
    image_size: tuple[int, int]
    note: str | None

    def as_dict(self) -> dict[str, Any]:
        """For the `models` of a result."""
        return {"name": self.name, "engine": self.engine, "labels": list(self.labels), "note": self.note}


@dataclass(frozen=True, slots=True)
class AnswererInfo:
    """What Stage 2 says of its model."""

    name: str
    engine: str
    note: str | None

    def as_dict(self) -> dict[str, Any]:
        """For the `models` of a result."""
        return {"name": self.name, "engine": self.engine, "note": self.note}


@dataclass(frozen=True, slots=True)
class BatchFindings:
    """One entry per clip of the batch, in its order: findings, or why the clip failed."""

    clips: tuple[ClipFindings | BadReply, ...]
    times: StageTimes


class StageClient:
    """What both clients share: one session without a pool limit, since callers bound what is in flight."""

    def __init__(self, name: str, base_url: str, *, timeout_s: float, retry_for_s: float, max_reply_mb: float) -> None:
        self._name = name
        self._base_url = base_url
        # An unlimited pool: the total then holds no waiting for a connection.
        self._timeout = aiohttp.ClientTimeout(
            total=timeout_s, connect=_CONNECT_TIMEOUT_S, sock_connect=_CONNECT_TIMEOUT_S, sock_read=timeout_s
        )
        self._retry_for_s = retry_for_s
        self._max_reply = int(max_reply_mb * _MIB)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15), timeout=self._timeout
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def post_json(self, path: str, body: bytes, *, key: str) -> Reply:
        """POST a JSON body, waiting while the stage is away.

        Raises:
            StageError: What became of it; see the module's words on waiting and sends.
            RequestError: The stage refused the request.
        """
        headers = {wire.IDEMPOTENCY_HEADER: key, "Content-Type": "application/json"}
        return await self._waiting(lambda: self._request("POST", path, body=body, headers=headers))

    async def _request(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One HTTP request, sent once; every failure comes out as a `StageError` or `RequestError`."""
        if self._session is None:
            raise RuntimeError(f"{type(self).__name__} is used outside its `async with`")
        where = f"{self._name} at {self._base_url}"
        # A file-like body is sent in pieces, so that megabytes of pixels do not hold up the loop.
        data = None if body is None else io.BytesIO(body)
        sent = time.perf_counter()
        try:
            async with self._session.request(method, self._base_url + path, data=data, headers=headers) as response:
                content = await self._read(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise StageUnreachable(f"{where} cannot be reached: {error}") from error
        except TimeoutError as error:
            raise StageTimeout(f"{where} gave no reply within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineFailed(f"{where}: connection lost: {error or type(error).__name__}") from error
        if response.status != 200:
            raise _error_of(where, response.status, response.headers, content)
        queue_s, run_s = wire.parse_server_timing(response.headers.get(wire.SERVER_TIMING_HEADER))
        return Reply(response.headers, content, StageTimes(time.perf_counter() - sent, queue_s, run_s))

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > self._max_reply:
                raise BadReply(f"{self._name}: the reply is over {self._max_reply} bytes")
        return bytes(content)

    async def _waiting(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request that only had to wait, at most `retry_for_s` long."""
        if self._retry_for_s == 0:
            return await request()
        attempts = stamina.retry_context(
            on=_wait_of,
            attempts=None,
            timeout=self._retry_for_s,
            wait_initial=_FIRST_WAIT_S,
            wait_max=_LONGEST_WAIT_S,
            wait_jitter=_FIRST_WAIT_S,
        )
        async for attempt in attempts:
            with attempt:
                return await request()
        raise RuntimeError("unreachable: the last attempt raises")


class Stage1Client(StageClient):
    """Speaks the Open Inference Protocol to the detector."""

    def __init__(self, config: Stage1Config, *, retry_for_s: float) -> None:
        super().__init__(
            "stage1",
            config.base_url,
            timeout_s=config.timeout_s,
            retry_for_s=retry_for_s,
            max_reply_mb=config.max_body_mb,
        )
        self._parameters = {"threshold": config.threshold, "nms_iou": config.nms_iou}
        self._labels_path = config.labels_path

    async def describe(self) -> DetectorInfo:
        """Ask for the model's metadata.

        Raises:
            StageError: The stage is away or answers nonsense.
            ConfigError: It does not name its labels and `stage1.labels_path` is not set.
        """
        reply = await self._waiting(lambda: self._request("GET", f"/v2/models/{MODEL}"))
        content = reply.json()
        parameters = content.get("parameters") or {}
        try:
            shape = next(tensor["shape"] for tensor in content["inputs"] if tensor["name"] == "clips")
            _, length, height, width, _ = (int(side) for side in shape)
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise BadReply("stage1: its metadata has no input `clips` of shape [B,T,H,W,3]") from error
        return DetectorInfo(
            name=str(content.get("name", MODEL)),
            engine=str(content.get("platform", "unknown")),
            labels=self._labels(parameters.get("labels")),
            clip_length=length,
            image_size=(height, width),
            note=parameters.get("note"),
        )

    def _pack(self, clips: Sequence[NDArray[np.uint8]]) -> tuple[bytes, int]:
        parts, head_length = wire.pack_tensors({"clips": np.stack(clips)}, kind="inputs", parameters=self._parameters)
        return b"".join(parts), head_length

    def _labels(self, told: object) -> tuple[str, ...]:
        if isinstance(told, list):
            return tuple(str(label) for label in told)
        if self._labels_path is None:
            raise ConfigError("stage1.labels_path: must be set, since the server at stage1.url names no labels")
        try:
            text = self._labels_path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"stage1.labels_path: {self._labels_path}: {error.strerror}") from error
        return tuple(line.strip() for line in text.splitlines() if line.strip())

    async def detect(self, clips: Sequence[NDArray[np.uint8]], *, key: str) -> BatchFindings:
        """Find the persons and actions at the last frame of each clip.

        Args:
            clips: Each `(T, H, W, 3)` uint8 RGB at the model's size.
            key: Idempotency key of the batch.

        Raises:
            StageUnreachable, QueueFull: The stage stayed away for `retry_for_s`.
            StageError: The batch was sent twice and lost twice, or refused.
        """
        body, head_length = await asyncio.to_thread(self._pack, clips)
        headers = {
            wire.OIP_HEAD_LENGTH_HEADER: str(head_length),
            wire.IDEMPOTENCY_HEADER: key,
            "Content-Type": "application/octet-stream",
        }
        path = f"/v2/models/{MODEL}/infer"
        for last in (False, True):
            try:
                reply = await self._waiting(lambda: self._request("POST", path, body=body, headers=headers))
                return BatchFindings(read_findings(reply.headers, reply.body, len(clips)), reply.times)
            except (EngineFailed, StageTimeout, BadReply):
                if last:
                    raise
        raise RuntimeError("unreachable: the last send returns or raises")


class Stage2Client(StageClient):
    """Speaks the OpenAI chat API to the vision-language model."""

    def __init__(self, config: Stage2Config, pipeline: PipelineConfig) -> None:
        super().__init__(
            "stage2",
            config.base_url,
            timeout_s=config.timeout_s,
            retry_for_s=pipeline.retry_for_s,
            max_reply_mb=config.max_body_mb,
        )
        self._max_tokens = config.max_tokens
        self._settings = pipeline
        self._wanted = config.model

    async def describe(self) -> AnswererInfo:
        """The served model of `GET /v1/models`: the configured one if it is listed, else the first.

        Raises:
            StageError: The stage is away or lists no model.
        """
        reply = await self._waiting(lambda: self._request("GET", "/v1/models"))
        entries = reply.json().get("data")
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
            raise BadReply("stage2: /v1/models lists no model")
        entry = next((entry for entry in entries if entry.get("id") == self._wanted), entries[0])
        return AnswererInfo(str(entry.get("id")), str(entry.get("engine", "unknown")), entry.get("note"))

    async def evaluate(self, question: Question, *, model: str, key: str) -> tuple[Asked, StageTimes | None]:
        """Ask about one slot; times are those of the last reply, None if there was none.

        Raises:
            StageUnreachable, QueueFull: The stage stayed away for `retry_for_s`.
            DeadlineShed: The scheduler refused the slot.
            RequestError: The stage refused the request.
        """
        times: StageTimes | None = None

        async def send(body: dict[str, Any], variant: int) -> Mapping[str, Any]:
            nonlocal times
            encoded = await asyncio.to_thread(lambda: json.dumps(body).encode())
            reply = await self.post_json("/v1/chat/completions", encoded, key=f"{key}/{variant}")
            times = reply.times
            return reply.json()

        asked = await ask(question, self._settings, model=model, max_tokens=self._max_tokens, send=send)
        return asked, times


def _wait_of(error: Exception) -> bool | float:
    if isinstance(error, StageUnreachable | QueueFull):
        return True if error.retry_after_s is None else min(error.retry_after_s, _LONGEST_WAIT_S)
    return False


def _error_of(where: str, status: int, headers: Mapping[str, str], content: bytes) -> StageError | RequestError:
    """The error a reply stands for; our own servers name it by code, stand-ins by status."""
    code, message = _error_content(content)
    text = f"{where} answered {status}: {message}"
    try:
        retry_after_s = float(headers.get("Retry-After", ""))
    except ValueError:
        retry_after_s = None
    if code == DeadlineShed.code:
        return DeadlineShed(text)
    if status == 429:
        return QueueFull(text, retry_after_s=retry_after_s)
    if status == 503 and code != EngineFailed.code:
        return StageUnreachable(text, retry_after_s=retry_after_s)
    if status in {408, 504}:
        return StageTimeout(text)
    if 400 <= status < 500:
        return RequestError(text)
    return EngineFailed(text)


def _error_content(content: bytes) -> tuple[str | None, str]:
    try:
        body = json.loads(content)
        error = body["error"]
        if isinstance(error, str):  # the Open Inference Protocol's shape
            return body.get("code"), error
        return error.get("code"), str(error.get("message"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, content[:300].decode(errors="replace")
