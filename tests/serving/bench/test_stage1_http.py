"""The load generator's HTTP, against servers that say what they are told to."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from pipeline_ver2.errors import BadReply, EngineFailed, StageError, StageTimeout, StageUnreachable
from serving.bench.daemons import free_ports
from serving.bench.stage1_http import Connection, HttpRequest
from tests.serving.bench.wire_server import serving

TIMEOUT_S = 30.0
REQUEST = HttpRequest.post("/path", b"the body", {"Content-Type": "text/plain"})
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer-Timing: run;dur=1\r\n\r\n"


def answering(*pieces: bytes, asked: list[bytes] | None = None) -> AbstractAsyncContextManager[int]:
    """A server that reads one request after another and answers each with these bytes, piece by piece."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.readexactly(len(REQUEST.head) + len(REQUEST.body)):
            if asked is not None:
                asked.append(request)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if not pieces:
                break

    return serving(serve)


async def ask(port: int, *, timeout_s: float = TIMEOUT_S) -> bytes:
    """The body of the reply to one request."""
    connection = await Connection.open(port, timeout_s=timeout_s)
    try:
        return (await connection.ask(REQUEST)).body
    finally:
        connection.close()


def test_a_request_has_its_length() -> None:
    """The head says how long the body is, and where to send it."""
    lines = REQUEST.head.decode().split("\r\n")
    assert lines[0] == "POST /path HTTP/1.1"
    assert "Content-Length: 8" in lines
    assert lines[-2:] == ["", ""]


def test_a_header_more_leaves_the_rest() -> None:
    """The body is shared, the head grows by one line."""
    more = REQUEST.with_header("X-More", "1")
    assert more.body is REQUEST.body
    assert more.head == REQUEST.head[:-2] + b"X-More: 1\r\n\r\n"


async def test_requests_on_one_connection() -> None:
    """Each gets its whole reply, however it is cut; header names are lower case."""
    asked: list[bytes] = []
    async with answering(OK[:20], OK[20:] + b"he", b"llo", asked=asked) as port:
        connection = await Connection.open(port, timeout_s=TIMEOUT_S)
        replies = [await connection.ask(REQUEST) for _ in range(3)]
        connection.close()
    assert [reply.body for reply in replies] == [b"hello"] * 3
    assert replies[0].headers["server-timing"] == "run;dur=1"
    assert all(reply.total_s > 0 for reply in replies)
    assert b"".join(asked) == 3 * (REQUEST.head + REQUEST.body)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate", StageError),
        (b"HTTP/1.1 200 OK\r\n\r\n", BadReply),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", BadReply),
        (b"SSH-2.0-OpenSSH\r\n\r\n", BadReply),
        (b"\r\n\r\n", BadReply),
    ],
)
async def test_replies_that_are_none(reply: bytes, error: type[StageError]) -> None:
    """What is no success is an error of the tree."""
    async with answering(reply) as port:
        with pytest.raises(error):
            await ask(port)


async def test_a_server_that_hangs_up() -> None:
    """No reply is a lost connection."""
    async with answering() as port:
        with pytest.raises(EngineFailed):
            await ask(port)


async def test_a_server_that_does_not_answer() -> None:
    """Waiting has an end."""
    async with answering(OK) as port:
        with pytest.raises(StageTimeout, match=r"no reply within 0\.05 s"):
            await ask(port, timeout_s=0.05)


async def test_nobody_listens() -> None:
    """A refused connection says so."""
    (port,) = free_ports(1)
    with pytest.raises(StageUnreachable, match=str(port)):
        await ask(port)
