"""The load generator's HTTP: bodies are made once and go out as they are, so that it takes as little of the processor
as it can from the servers it measures, which share the machine with it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pipeline_ver2.errors import BadReply, EngineFailed, StageError, StageTimeout, StageUnreachable

_HEAD_END = b"\r\n\r\n"
_MOST_HEAD, _MOST_BODY, _PIECE = 64 * 1024, 64 * 1024 * 1024, 256 * 1024


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A POST, ready to be sent: its head and its body."""

    head: bytes
    body: bytes

    @classmethod
    def post(cls, path: str, body: bytes, headers: Mapping[str, str]) -> Self:
        """A POST to a path; the length is added."""
        lines = {"Host": "localhost", **headers, "Content-Length": str(len(body))}
        head = "".join(
            [f"POST {path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items()), "\r\n"]
        )
        return cls(head.encode("latin-1"), body)

    def with_header(self, name: str, value: str) -> HttpRequest:
        """The same with one header more; the body is shared."""
        return HttpRequest(self.head.removesuffix(b"\r\n") + f"{name}: {value}\r\n\r\n".encode("latin-1"), self.body)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A reply; names of `headers` are lower case, `total_s` is from the first byte sent to the last one received."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    total_s: float


class Connection:
    """One kept-alive connection to a server on this machine; one request at a time."""

    def __init__(self, connected: socket.socket, timeout_s: float) -> None:
        self._socket = connected
        self._timeout_s = timeout_s

    @classmethod
    async def open(cls, port: int, *, timeout_s: float) -> Self:
        """Connect to a loopback port; each request on it may take `timeout_s`.

        Raises:
            StageUnreachable: Nobody listens.
        """
        made = socket.socket()
        made.settimeout(0)  # for the event loop
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        except BaseException as error:
            made.close()
            if isinstance(error, OSError):  # a TimeoutError is one
                raise StageUnreachable(f"port {port}: {error}") from error
            raise
        return cls(made, timeout_s)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    async def ask(self, request: HttpRequest) -> HttpReply:
        """Send a request and wait for its whole reply.

        Raises:
            StageTimeout: It took too long.
            EngineFailed: The connection was lost.
            BadReply: No HTTP, or without a length.
            StageError: The server refused, or failed.
        """
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                status, headers, body = await self._exchange(request)
        except TimeoutError as error:
            raise StageTimeout(f"no reply within {self._timeout_s:g} s") from error
        except OSError as error:
            raise EngineFailed(f"connection lost: {error}") from error
        if status != 200:
            raise StageError(f"answered {status}: {body[:300].decode(errors='replace')}")
        return HttpReply(status, headers, body, time.perf_counter() - begun)

    async def _exchange(self, request: HttpRequest) -> tuple[int, dict[str, str], bytes]:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, request.head)
        await loop.sock_sendall(self._socket, request.body)
        received = bytearray()
        while (end := received.find(_HEAD_END)) < 0:
            await self._receive(received, _MOST_HEAD)
        status, headers = _read_head(bytes(received[:end]))
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > _MOST_BODY:
            raise BadReply(f"the reply's Content-Length is {length!r}")
        whole = end + len(_HEAD_END) + int(length)
        while len(received) < whole:
            await self._receive(received, whole)
        return status, headers, bytes(received[end + len(_HEAD_END) :])

    async def _receive(self, received: bytearray, most: int) -> None:
        piece = await asyncio.get_running_loop().sock_recv(self._socket, _PIECE)
        if not piece:
            raise EngineFailed("the server closed the connection")
        received += piece
        if len(received) > most + _PIECE:
            raise BadReply(f"the reply is longer than {most} bytes")


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    try:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status = first.split(" ")[:2]
        named = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in named}
        if not version.startswith("HTTP/1."):
            raise BadReply(f"no HTTP reply: {first[:80]!r}")
        return int(status), headers
    except ValueError as error:
        raise BadReply(f"no HTTP reply: {head[:80]!r}") from error
