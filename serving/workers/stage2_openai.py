"""A client for one OpenAI-compatible server: explicit deadlines, every failure mapped, nothing ever sent twice."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pydantic_core

from pipeline_ver2.errors import (
    BadReply,
    BodyTooLarge,
    EngineFailed,
    RequestError,
    StageError,
    StageTimeout,
    StageUnreachable,
    UnknownModel,
    ZroactError,
    refusal,
)

_CONNECT_TIMEOUT_S = 5.0
_IDLE_S = 1.0
_CHECK_TIMEOUT_S = 5.0
_MAX_REPLY = 8 * 1024 * 1024
_RETRY_AFTER_S = 1.0


class OpenAIServer:
    """One server, by the URL before `/v1`."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        # Idle connections are left soon: a server that closes one at the wrong moment would look like a dead engine.
        # No pool limit, so that no time-out counts waiting for a connection.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            timeout=aiohttp.ClientTimeout(
                total=timeout_s, connect=_CONNECT_TIMEOUT_S, sock_connect=_CONNECT_TIMEOUT_S, sock_read=timeout_s
            ),
        )

    async def close(self) -> None:
        """Drop all connections."""
        await self._session.close()

    async def healthy(self) -> None:
        """Ask `/health`, or `/v1/models` where that does not exist.

        Raises:
            StageError: The server is away or says that it is not well.
        """
        try:
            await self._read_json("GET", "/health", may_be_empty=True)
        except UnknownModel:
            await self.models()

    async def models(self) -> list[dict[str, Any]]:
        """The entries of `/v1/models`.

        Raises:
            StageError: The server is away or lists nothing.
        """
        content = await self._read_json("GET", "/v1/models")
        entries = content.get("data")
        if not isinstance(entries, list) or not all(
            isinstance(e, dict) and isinstance(e.get("id"), str) for e in entries
        ):
            raise BadReply(f"{self.url}/v1/models lists no models")
        return entries

    async def metrics(self) -> str:
        """The text of `/metrics`.

        Raises:
            StageError: The server is away or has none.
        """
        async with self._request("GET", "/metrics", None) as response:
            return (await _read(response)).decode(errors="replace")

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one chat, return the completion.

        Raises:
            StageError: The server is away, failed, or answered nonsense.
            RequestError: It refuses the request.
        """
        return await self._read_json("POST", "/v1/chat/completions", body)

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send one chat, pass on the chunks; raises as `complete`. Closing this closes the connection."""
        async with self._request("POST", "/v1/chat/completions", body) as response:
            async for event in _events(response):
                if event == b"[DONE]":
                    return
                chunk = _json_object(event, self.url)
                if "error" in chunk:
                    raise self._refusal(500, {}, event)
                yield chunk
        raise EngineFailed(f"{self.url} ended its stream early")

    async def _read_json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, may_be_empty: bool = False
    ) -> dict[str, Any]:
        async with self._request(method, path, body) as response:
            content = await _read(response)
        return {} if may_be_empty else _json_object(content, self.url + path)

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        encoded = None if body is None else pydantic_core.to_json(body)
        timeout = aiohttp.ClientTimeout(total=_CHECK_TIMEOUT_S) if body is None else self._session.timeout
        headers = {} if body is None else {"Content-Type": "application/json"}
        if self._session.closed:
            raise StageUnreachable(f"{self.url} is no longer used", retry_after_s=_RETRY_AFTER_S)
        try:
            async with self._session.request(
                method, self.url + path, data=encoded, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise self._refusal(response.status, response.headers, await _read(response))
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise StageUnreachable(f"{self.url} cannot be reached: {error}", retry_after_s=_RETRY_AFTER_S) from error
        except TimeoutError as error:
            raise StageTimeout(f"{self.url}{path} did not answer within {timeout.total:g} s") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineFailed(f"{self.url}: connection lost: {error or type(error).__name__}") from error

    def _refusal(self, status: int, headers: Mapping[str, str], content: bytes) -> ZroactError:
        """The error that a reply other than 200 stands for."""
        code, message = _said(content)
        text = f"{self.url} answered {status}: {message}"
        try:
            retry_after_s = float(headers.get("Retry-After", _RETRY_AFTER_S))
        except ValueError:
            retry_after_s = _RETRY_AFTER_S
        refused = refusal(status, code, text, retry_after_s)
        if refused is not None:
            return refused
        return _BY_STATUS.get(status, StageError if status in {401, 403} else _by_class(status))(text)


_BY_STATUS: Mapping[int, type[ZroactError]] = {
    404: UnknownModel,
    408: StageTimeout,
    413: BodyTooLarge,
    504: StageTimeout,
}


def _by_class(status: int) -> type[ZroactError]:
    if 400 <= status < 500:
        return RequestError
    return EngineFailed if status >= 500 else BadReply


def _said(content: bytes) -> tuple[str | None, str]:
    """`(code, message)` of an error body: ours, OpenAI's, or FastAPI's."""
    try:
        body = json.loads(content)
        error = body["error"] if "error" in body else {"message": body["detail"]}
        code = error.get("code")
        return code if isinstance(code, str) else None, str(error["message"])[:500]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, content[:300].decode(errors="replace")


def _json_object(content: bytes, where: str) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError as error:
        raise BadReply(f"{where}: the reply is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadReply(f"{where}: the reply is not a JSON object")
    return body


async def _read(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > _MAX_REPLY:
            raise BadReply(f"{response.url}: the reply is over {_MAX_REPLY} bytes")
    return bytes(content)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of each server-sent event; OpenAI servers send one line of data per event."""
    waiting = b""
    async for part in response.content.iter_any():
        *lines, waiting = (waiting + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip()
        if len(waiting) > _MAX_REPLY:
            raise BadReply(f"{response.url}: an event is over {_MAX_REPLY} bytes")
