"""Bodies of megabytes: received at once where the application asks for it, and as by uvicorn where it does not."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import queue
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from pipeline_ver2.errors import RequestError
from serving.workers.bulk_http import BULK_BYTES, whole_body
from serving.workers.daemon import cancel_when_gone
from tests.servers import PATIENCE_S, served

LARGE = bytes(range(256)) * (BULK_BYTES // 256 + 1)
SMALL = b"a few bytes"


@dataclass
class Server:
    """A server of these tests, and what happened to its requests."""

    port: int = 0
    ends: queue.Queue[str] = field(default_factory=queue.Queue)

    def end(self) -> str:
        """What became of the next request that ended without a reply."""
        return self.ends.get(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An application that reads bodies in every way there is."""
    told = Server()
    with served(build_app(told), until_ready=False) as url:
        told.port = urlsplit(url).port or 0
        yield told


def build_app(told: Server) -> FastAPI:
    """`/whole` asks for all of it, `/pieces` does not, `/refused` reads nothing, `/hurried` waits a moment only,
    `/endless` never answers."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/whole")
    async def whole(request: Request) -> Response:
        try:
            body = await whole_body(request, timeout_s=PATIENCE_S)
        except ClientDisconnect:
            told.ends.put("gone before its body was there")
            raise
        return Response(f"{type(body).__name__} {hashlib.sha256(body).hexdigest()}")

    @app.post("/pieces")
    async def pieces(request: Request) -> Response:
        return Response(hashlib.sha256(await request.body()).hexdigest())

    @app.post("/refused")
    async def refused() -> Response:
        return Response("no", status_code=413)

    @app.post("/hurried")
    async def hurried(request: Request) -> Response:
        try:
            await whole_body(request, timeout_s=0.05)
        except RequestError as error:
            return Response(str(error), status_code=422)
        return Response("in time")

    @app.post("/endless")
    async def endless(request: Request) -> Response:
        await whole_body(request, timeout_s=PATIENCE_S)
        told.ends.put("read")
        try:
            await cancel_when_gone(request, asyncio.sleep(PATIENCE_S))
        except ClientDisconnect:
            told.ends.put("gone while it was worked on")
            raise
        return Response("at last")

    return app


@contextmanager
def connected(server: Server) -> Iterator[http.client.HTTPConnection]:
    """A connection to the server."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    try:
        yield connection
    finally:
        connection.close()


def post(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, str]:
    """Status and text of the reply."""
    connection.request("POST", path, body)
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def digest(body: bytes) -> str:
    """Its name among all bodies."""
    return hashlib.sha256(body).hexdigest()


def test_a_large_body_is_received_at_once(server: Server) -> None:
    """It comes whole, and the connection serves further requests, large and small."""
    other = LARGE[::-1] + SMALL
    with connected(server) as connection:
        assert post(connection, "/whole", LARGE) == (200, f"memoryview {digest(LARGE)}")
        assert post(connection, "/whole", SMALL) == (200, f"bytes {digest(SMALL)}")
        assert post(connection, "/whole", other) == (200, f"memoryview {digest(other)}")
        assert post(connection, "/pieces", LARGE) == (200, digest(LARGE))
        assert post(connection, "/whole", b"") == (200, f"bytes {digest(b'')}")


def test_a_request_sent_behind_a_large_body_is_answered(server: Server) -> None:
    """The body ends where its length says; what follows is the next request."""
    first = b"POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    second = b"POST /whole HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(SMALL)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
        client.sendall(first + LARGE + second + SMALL)
        replies = b"".join(iter(lambda: client.recv(65536), b""))
    assert replies.count(b"HTTP/1.1 200 OK") == 2
    assert replies.index(digest(LARGE).encode()) < replies.index(digest(SMALL).encode())


def test_a_client_that_waits_to_be_told_is_told(server: Server) -> None:
    """`Expect: 100-continue` is answered before the body is asked for."""
    head = b"POST /whole HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
        client.sendall(head)
        assert client.recv(1000).startswith(b"HTTP/1.1 100 Continue")
        client.sendall(LARGE)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_a_large_body_nobody_reads_does_no_harm(server: Server) -> None:
    """The refusal is sent at once, and the connection goes on or ends, but does not hang."""
    with connected(server) as connection:
        assert post(connection, "/refused", LARGE) == (413, "no")
        assert post(connection, "/whole", LARGE)[0] == 200


@pytest.mark.parametrize("sent", [0, 1000, BULK_BYTES - 1])
def test_a_client_that_goes_within_its_body(server: Server, sent: int) -> None:
    """The application learns that the rest will not come."""
    head = b"POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
        client.sendall(head + LARGE[:sent])
    assert server.end() == "gone before its body was there"


def test_a_client_that_goes_after_its_body(server: Server) -> None:
    """Work for it is cancelled: whoever listens for its end hears of it."""
    head = b"POST /endless HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
        client.sendall(head + LARGE)
        assert server.end() == "read"
    assert server.end() == "gone while it was worked on"


def test_a_body_that_stops_coming(server: Server) -> None:
    """The application gives it up and answers; the connection, whose next bytes could be anything, is closed."""
    head = b"POST /hurried HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
        client.sendall(head + LARGE[: BULK_BYTES // 2])
        reply = b"".join(iter(lambda: client.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 422")
    assert b"connection: close" in reply
    assert b"did not arrive within 0.05 s" in reply
