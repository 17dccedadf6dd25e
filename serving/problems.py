"""Errors as problem details (RFC 9457), mapped once, from the error tree."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from pipeline_ver2.errors import RequestError, StageError, StageUnreachable, StorageFull, Unauthorized, ZroactError

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
STATUS_CLIENT_GONE = 499


class Problem(BaseModel):
    """The body of every refusal. `code` tells kinds apart, `retryable` whether the same request may succeed later."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    retryable: bool = False


def problem_response(error: ZroactError) -> JSONResponse:
    """The reply for an error of the tree; `Retry-After` is there where the error knows when to come back."""
    headers = {}
    if isinstance(error, StageError) and error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return _reply(error.http_status, error.code, str(error), retryable=error.retryable, headers=headers)


def documented(*codes: int) -> dict[int | str, dict[str, Any]]:
    """What the documentation says of replies of these statuses."""
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    return {
        code: {"model": Problem, "description": _phrase(code), "content": {MEDIA_TYPE: {"schema": schema}}}
        for code in codes
    }


def install(app: FastAPI) -> None:
    """Make an application answer errors this way."""
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)


def _reply(
    status: int, code: str, detail: str, *, retryable: bool = False, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    problem = Problem(title=_phrase(status), status=status, detail=detail, code=code, retryable=retryable)
    return JSONResponse(problem.model_dump(), status_code=status, headers=headers, media_type=MEDIA_TYPE)


async def _on_zroact_error(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, ZroactError) else ZroactError(str(error))
    if known.http_status >= 500 and not isinstance(known, StageUnreachable | StorageFull):  # waiting is no news
        logger.warning("%s %s: %s: %s", request.method, request.url.path, known.code, known)
    return problem_response(known)


async def _on_validation_error(_request: Request, error: Exception) -> Response:
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    said = "; ".join(f"{_field(problem)}: {problem['msg']}" for problem in problems[:5])
    return problem_response(RequestError(said))


def _field(problem: dict[str, Any]) -> str:
    return ".".join(str(part) for part in problem["loc"] if part not in {"body", "query", "path"}) or "body"


async def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods(request))
    return _reply(error.status_code, "http", str(error.detail), headers=headers)


def _methods(request: Request) -> list[str]:
    """What can be done with a path; the first route that has the path knows only its own methods."""
    allowed: set[str] = set()
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            allowed.add(method)
    return sorted(allowed)


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=STATUS_CLIENT_GONE)  # nobody reads it


async def _on_unknown_error(request: Request, _error: Exception) -> Response:
    """The server logs the traceback; the client learns no more than that."""
    return problem_response(ZroactError(f"internal error in {request.method} {request.url.path}; the log says more"))


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    ZroactError: _on_zroact_error,
    RequestValidationError: _on_validation_error,
    HTTPException: _on_http_error,
    ClientDisconnect: _on_client_gone,
    Exception: _on_unknown_error,
}
