"""The HTTP side both daemons share: health, metrics, errors, limits, request headers, idempotency, clients that go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline_ver2.errors import BodyTooLarge, QueueFull, RequestError, StageError, StageUnreachable, ZroactError
from pipeline_ver2.trace_context import TRACEPARENT_HEADER, TraceContext
from pipeline_ver2.wire import CLIENT_HEADER, DEADLINE_HEADER, IDEMPOTENCY_HEADER, error_body, oip_error_body
from serving.workers.json_bodies import JsonRoute

logger = logging.getLogger(__name__)

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
T = TypeVar("T")

BODY_TIMEOUT_S = 60.0
MAX_KEY_LENGTH = 200
STATUS_CLIENT_GONE = 499
_OIP_PATHS, _OPENAI_PATHS = "/v2/", "/v1/"
MEGABYTE = 1_000_000


class ErrorDetail(BaseModel):
    """What went wrong; `retryable` says whether the same request may succeed later.

    `type` and `param`, the field that is to blame, are OpenAI's words.
    """

    code: str
    message: str
    retryable: bool
    type: str
    param: str | None = None
    raw_text: str | None = None


class ErrorReply(BaseModel):
    """The body of every refusal."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The request headers both daemons honour. `deadline_at` is on the clock of `time.monotonic`."""

    client: str
    deadline_at: float | None
    idempotency_key: str | None


def create_app(
    title: str,
    *,
    lifespan: Lifespan,
    ready: Callable[[], Awaitable[None]],
    registry: CollectorRegistry,
    max_body_mb: float,
    max_bodies: int,
    more_metrics: Callable[[], Awaitable[str]] | None = None,
) -> FastAPI:
    """A FastAPI application with health, metrics, error mapping and limits.

    Args:
        title: Shown at `/docs`.
        lifespan: Starts and releases what the daemon owns; must return soon, long loading belongs in a task.
        ready: Returns when the daemon can do its work now, else raises a `StageError` for `/readyz` to send.
        registry: The metrics `/metrics` shows.
        max_body_mb: Largest body, in millions of bytes.
        max_bodies: Most requests with a body at once; further ones are told 429 before their body is read.
        more_metrics: Prometheus text that `/metrics` adds; must come soon and not fail.
    """
    app = FastAPI(title=title, lifespan=lifespan, responses={422: {"model": ErrorReply}})
    app.router.route_class = JsonRoute
    app.state.on_fatal = []
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(_BodyGuard, max_bytes=int(max_body_mb * MEGABYTE), max_bodies=max_bodies)
    app.add_middleware(RequestCounter, requests=request_counter(registry))

    @app.get("/livez", tags=["health"])
    async def livez() -> dict[str, str]:
        """The process answers."""
        return {"status": "alive"}

    @app.get("/readyz", tags=["health"], responses={503: {"model": ErrorReply}})
    async def readyz() -> dict[str, str]:
        """The daemon can do its work now."""
        await ready()
        return {"status": "ready"}

    @app.get("/metrics", tags=["health"], response_class=Response)
    async def metrics() -> Response:
        """Prometheus text."""
        more = "" if more_metrics is None else await more_metrics()
        return Response(generate_latest(registry) + more.encode(), media_type=CONTENT_TYPE_LATEST)

    return app


def give_up(app: FastAPI, error: ZroactError) -> None:
    """Stop the daemon because it can never do its work; the process says why in one line and exits non-zero."""
    for stop in app.state.on_fatal:
        stop(error)


def request_context(request: Request) -> RequestContext:
    """Read the headers both daemons honour.

    Raises:
        RequestError: A header that cannot be used; the message names it.
    """
    peer = request.client.host if request.client else "unknown"
    return RequestContext(
        client=_key_header(request, CLIENT_HEADER) or peer,
        deadline_at=_deadline(request.headers.get(DEADLINE_HEADER)),
        idempotency_key=_key_header(request, IDEMPOTENCY_HEADER),
    )


def error_response(error: ZroactError, path: str) -> JSONResponse:
    """The reply for an error of the tree, as the protocol of the path has it.

    `Retry-After` is there where the error knows when to come back. To the clients of both machines' protocols a bad
    request is a 400.
    """
    headers = {}
    if isinstance(error, StageError) and error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    body = oip_error_body(error) if path.startswith(_OIP_PATHS) else error_body(error)
    is_400 = path.startswith((_OIP_PATHS, _OPENAI_PATHS)) and error.http_status == RequestError.http_status
    return JSONResponse(body, status_code=400 if is_400 else error.http_status, headers=headers)


async def cancel_when_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, or cancel it as soon as the client closes its connection. The body must have been read.

    Raises:
        ClientDisconnect: The client is gone; its work has been cancelled and has ended.
    """
    while_there = asyncio.timeout(None)

    def gone(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the work has ended by now
            while_there.reschedule(0)

    watcher = asyncio.create_task(_until_gone(request))
    watcher.add_done_callback(gone)
    try:
        async with while_there:
            return await work
    except TimeoutError as error:
        if while_there.expired():
            raise ClientDisconnect from error
        raise
    finally:
        watcher.cancel()


class IdempotencyCache(Generic[T]):
    """Joins callers that bring the same key at the same time, and replays the last `size` results.

    Failures are not replayed. A caller that is cancelled leaves the others their work; the last one takes it along.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._finished: OrderedDict[Hashable, T] = OrderedDict()
        self._running: dict[Hashable, _Shared[T]] = {}

    async def run(self, key: Hashable | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result for the key: replayed, joined, or worked out now. No key, no memory."""
        if key is None:
            return await work()
        if key in self._finished:
            self._finished.move_to_end(key)
            return self._finished[key]
        shared = self._running.get(key)
        if shared is None:
            shared = self._running[key] = _Shared(asyncio.create_task(work()))
            shared.task.add_done_callback(lambda task: self._settle(key, task))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting and not shared.task.done():
                del self._running[key]
                shared.task.cancel()

    def _settle(self, key: Hashable, task: asyncio.Task[T]) -> None:
        shared = self._running.get(key)
        if shared is not None and shared.task is task:
            del self._running[key]
        if not task.cancelled() and task.exception() is None:
            self._finished[key] = task.result()
            while len(self._finished) > self._size:
                self._finished.popitem(last=False)


@dataclass(slots=True)
class _Shared(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0


class _BodyGuard:
    """Bounds bodies while they arrive: their size, their number at once, and the time one may take."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_bodies: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_bodies = max_bodies
        self._bodies = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        self._bodies += 1
        try:
            await self._app(scope, self._guarded(receive), send)
        finally:
            self._bodies -= 1

    def _refusal(self, scope: Scope) -> ZroactError | None:
        if self._bodies >= self._max_bodies:
            return QueueFull(f"{self._bodies} requests are being served already", retry_after_s=1)
        announced = dict(scope["headers"]).get(b"content-length", b"")
        return self._too_large() if announced.isdigit() and int(announced) > self._max_bytes else None

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is over the limit of {self._max_bytes / MEGABYTE:g} MB (max_body_mb)")

    def _guarded(self, receive: Receive) -> Receive:
        received, complete = 0, False
        give_up_at = time.monotonic() + BODY_TIMEOUT_S

        async def guarded() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout(give_up_at - time.monotonic()):
                    message = await receive()
            except TimeoutError as error:
                raise RequestError(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from error
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self._max_bytes:
                raise self._too_large()
            return message

        return guarded


def request_counter(registry: CollectorRegistry) -> Counter:
    """What a `RequestCounter` counts with."""
    said = "HTTP requests by route and status."
    return Counter("zroact_http_requests", said, ["route", "status"], registry=registry)


class RequestCounter:
    """Middleware that counts requests by route and status."""

    def __init__(self, app: ASGIApp, *, requests: Counter) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._requests.labels(route, status).inc()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _key_header(request: Request, name: str) -> str | None:
    value = request.headers.get(name)
    if value is not None and not 0 < len(value) <= MAX_KEY_LENGTH:
        raise RequestError(f"{name} must have 1 to {MAX_KEY_LENGTH} characters, not {len(value)}")
    return value


def _deadline(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        left_ms = float(value)
    except ValueError as error:
        raise RequestError(f"{DEADLINE_HEADER} must be a number of milliseconds, not {value[:40]!r}") from error
    if not math.isfinite(left_ms):
        raise RequestError(f"{DEADLINE_HEADER} must be finite, not {value[:40]!r}")
    return time.monotonic() + left_ms / 1e3


async def _on_zroact_error(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, ZroactError) else ZroactError(str(error))
    if known.http_status >= 500 and not isinstance(known, StageUnreachable):  # waiting is no news
        logger.warning("%s %s: %s: %s%s", request.method, request.url.path, known.code, known, _traced(request))
    return error_response(known, request.url.path)


def _traced(request: Request) -> str:
    """The trace a request belongs to, for the log."""
    asking = TraceContext.parse(request.headers.get(TRACEPARENT_HEADER))
    return "" if asking is None else f" (trace {asking.trace_id}, span {asking.span_id})"


async def _on_validation_error(request: Request, error: Exception) -> Response:
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    said = "; ".join(f"{_field(problem)}: {problem['msg']}" for problem in problems[:5])
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    return error_response(RequestError(f"{said}{more}"), request.url.path)


def _field(problem: dict[str, Any]) -> str:
    if problem["type"] == "json_invalid":  # its place is an offset, not a field
        return "body"
    return ".".join(str(part) for part in problem["loc"] if part != "body") or "body"


async def _on_http_error(request: Request, error: Exception) -> Response:
    cause = error.__cause__
    if isinstance(cause, ZroactError):  # FastAPI wraps what the body guard raises while it reads a JSON body
        return error_response(cause, request.url.path)
    if not isinstance(error, HTTPException):
        raise error
    detail = {"code": "http", "message": str(error.detail), "retryable": False, "type": "invalid_request_error"}
    oip = request.url.path.startswith(_OIP_PATHS)
    body = {"error": detail.pop("message"), **detail} if oip else {"error": {**detail, "param": None}}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=STATUS_CLIENT_GONE)  # nobody reads it; it is there for the metrics


async def _on_unknown_error(request: Request, _error: Exception) -> Response:
    """The server logs the traceback; the client learns no more than that."""
    said = f"internal error in {request.method} {request.url.path}; the log says more"
    return error_response(ZroactError(said), request.url.path)


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    ZroactError: _on_zroact_error,
    RequestValidationError: _on_validation_error,
    HTTPException: _on_http_error,
    ClientDisconnect: _on_client_gone,
    Exception: _on_unknown_error,
}
