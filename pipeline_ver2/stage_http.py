"""One stage as an HTTP client sees it: deadlines, waiting while it is away, and every failure as an error of the tree.

What counts as *waiting* (a refused connection, 429, a 503 of a stage that is not ready) is repeated here within
`retry_for_s`. What counts as a *send* (a lost connection, a time-out, a broken reply) is raised to whoever counts.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import aiohttp
import stamina

from pipeline_ver2 import wire
from pipeline_ver2.deadline import Deadline, headers_of
from pipeline_ver2.errors import (
    BadReply,
    EngineFailed,
    QueueFull,
    RequestError,
    StageError,
    StageTimeout,
    StageUnreachable,
    refusal,
)
from pipeline_ver2.trace_context import TRACEPARENT_HEADER, TraceContext

_CONNECT_TIMEOUT_S = 5.0
_KEEP_ALIVE_S = 4.0  # less than uvicorn's 5 s, so that a connection is never used while the server closes it
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_MIB = 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How long a request took from its sending to its whole reply, and what the stage says of it; seconds.

    `span_id` is the request's in the trace of its job.
    """

    total_s: float
    queue_s: float | None
    run_s: float | None
    span_id: str | None = None


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


class StageClient:
    """What both clients share: one session without a pool limit, since callers bound what is in flight."""

    _describe_path: ClassVar[str]

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        timeout_s: float,
        retry_for_s: float,
        max_reply_mb: float,
        trace: TraceContext | None = None,
    ) -> None:
        self._name = name
        self._trace = trace
        self._resending = asyncio.Lock()
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
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S), timeout=self._timeout
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def post_json(self, path: str, body: bytes, *, key: str, deadline: Deadline | None = None) -> Reply:
        """POST a JSON body, waiting while the stage is away, but not beyond a deadline.

        Raises:
            StageError: What became of it; see the module's words on waiting and sends.
            RequestError: The stage refused the request.
        """
        headers = {**wire.job_headers(key), "Content-Type": "application/json"}
        return await self._post(path, body, headers, deadline)

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str], deadline: Deadline | None) -> Reply:
        async def send() -> Reply:
            return await self._request("POST", path, body=body, headers={**headers, **headers_of(deadline)})

        return await self._waiting(send, deadline=deadline)

    async def _request(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One HTTP request, sent once; every failure comes out as a `StageError` or `RequestError`."""
        if self._session is None:
            raise RuntimeError(f"{type(self).__name__} is used outside its `async with`")
        where = f"{self._name} at {self._base_url}"
        # A file-like body is sent in pieces, so that megabytes of pixels do not hold up the loop.
        data = None if body is None else io.BytesIO(body)
        span = None if self._trace is None else self._trace.child()
        if span is not None:
            headers = {**(headers or {}), TRACEPARENT_HEADER: span.header}
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
        times = StageTimes(time.perf_counter() - sent, queue_s, run_s, None if span is None else span.span_id)
        return Reply(response.headers, content, times)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > self._max_reply:
                raise BadReply(f"{self._name}: the reply is over {self._max_reply} bytes")
        return bytes(content)

    async def _waiting(
        self,
        request: Callable[[], Awaitable[T]],
        wait_of: Callable[[Exception], bool | float] | None = None,
        deadline: Deadline | None = None,
    ) -> T:
        """Repeat a request that only had to wait, at most `retry_for_s` long, and not beyond a deadline."""
        retry_for_s = self._retry_for_s if deadline is None else min(self._retry_for_s, deadline.left_s)
        if retry_for_s <= 0:
            return await request()
        attempts = stamina.retry_context(
            on=wait_of or _wait_of,
            attempts=None,
            timeout=retry_for_s,
            wait_initial=_FIRST_WAIT_S,
            wait_max=_LONGEST_WAIT_S,
            wait_jitter=_FIRST_WAIT_S,
        )
        async for attempt in attempts:
            with attempt:
                return await request()
        raise RuntimeError("unreachable: the last attempt raises")

    async def _ask_ready(self) -> None:
        """A real sign of work where the stage gives one; a stand-in without `/readyz` must at least describe itself."""
        try:
            await self._request("GET", "/readyz")
        except RequestError:
            await self._request("GET", self._describe_path)

    @asynccontextmanager
    async def _sending(self, *, after_loss: bool, deadline: Deadline | None = None) -> AsyncIterator[None]:
        """Around a send. One that follows a lost one waits until the stage answers again, and goes alone.

        A process that is dying still accepts connections, so sending again at once can lose the request twice. And
        whichever of the lost requests killed the engine must not take the innocent ones with it a second time.
        """
        if not after_loss:
            yield
            return
        async with self._resending:
            try:
                await self._waiting(self._ask_ready, lambda error: isinstance(error, StageError), deadline)
            except (EngineFailed, StageTimeout, BadReply) as error:
                raise StageUnreachable(f"{self._name} does not come back: {error}") from error
            yield


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
    refused = refusal(status, code, text, retry_after_s)
    if refused is not None:
        return refused
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
