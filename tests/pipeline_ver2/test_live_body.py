"""The bytes of a live source that we read ourselves."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from aiohttp import web

from pipeline_ver2.errors import MediaPathError, SourceLost
from pipeline_ver2.live_body import HttpBody, InputBody


def opened(url: str, read_timeout_s: float = 10) -> HttpBody:
    """The body at a URL."""
    return HttpBody(url, open_timeout_s=10, read_timeout_s=read_timeout_s)


def content(url: str) -> bytes:
    """All of the body at a URL."""
    with closing(opened(url)) as body:
        found = b""
        while piece := body.read(5):
            found += piece
        return found


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """The URL of a server with a text, a playlist, redirects, a lock, and silence."""

    async def text(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.query_string}|{request.headers.get('Authorization', '')}")

    async def playlist(_request: web.Request) -> web.Response:
        return web.Response(text="#EXTM3U\n", content_type="application/x-mpegurl")

    async def around(request: web.Request) -> web.Response:
        left = int(request.match_info["left"])
        return web.Response(status=302, headers={"Location": f"{left - 1}" if left else "../text?b=2"})

    async def silence(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begin")
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.add_routes([web.get("/text", text), web.get("/playlist", playlist), web.get("/silence", silence)])
    app.add_routes([web.get("/around/{left}", around)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_the_body_comes_in_pieces(server: str) -> None:
    """As much at a time as is asked for at most; then nothing."""
    assert await asyncio.to_thread(content, f"http://{server}/text?a=1") == b"a=1|"


async def test_user_and_password_are_sent(server: str) -> None:
    """As basic authentication, percent signs resolved."""
    found = await asyncio.to_thread(content, f"http://me:s%40crit@{server}/text")
    assert found == b"|Basic bWU6c0Bjcml0"


async def test_redirects_are_followed(server: str) -> None:
    """Relative ones too."""
    assert await asyncio.to_thread(content, f"http://{server}/around/3") == b"b=2|"


@pytest.mark.parametrize(
    ("path", "said"), [("around/99", "more than 5 redirects"), ("nowhere?token=secret", "HTTP 404 Not Found")]
)
async def test_what_gives_nothing_is_said(server: str, path: str, said: str) -> None:
    """Without the query, which may be secret."""
    with pytest.raises(SourceLost, match=said) as caught:
        await asyncio.to_thread(content, f"http://{server}/{path}")
    assert "secret" not in str(caught.value)


async def test_each_hop_must_be_allowed(server: str) -> None:
    """A redirect leads nowhere the first URL could not lead."""
    visited = []

    def allow(url: str) -> None:
        visited.append(url)
        if len(visited) == 3:
            raise MediaPathError("planted")

    with pytest.raises(MediaPathError, match="planted"):
        await asyncio.to_thread(
            HttpBody, f"http://{server}/around/9", open_timeout_s=10, read_timeout_s=10, allow=allow
        )
    assert [url.rpartition("/")[2] for url in visited] == ["9", "8", "7"]


async def test_the_addresses_that_are_allowed_are_connected_to(server: str) -> None:
    """One after the other, and the name in the URL is not looked up again."""
    port = server.rpartition(":")[2]

    def fetch() -> bytes:
        url, found = f"http://camera.invalid:{port}/text", ["127.0.0.2", "127.0.0.1"]
        body = HttpBody(url, open_timeout_s=10, read_timeout_s=10, allow=lambda _url: found)
        try:
            return body.read(100)
        finally:
            body.close()

    assert await asyncio.to_thread(fetch) == await asyncio.to_thread(content, f"http://{server}/text")


async def test_no_address_is_allowed(server: str) -> None:
    """Nothing is connected to."""
    with pytest.raises(SourceLost, match="no address"):
        await asyncio.to_thread(
            HttpBody, f"http://{server}/text", open_timeout_s=10, read_timeout_s=10, allow=lambda _url: []
        )


@pytest.mark.parametrize(("path", "expected"), [("playlist", True), ("text?a=1", False), ("text", False)])
async def test_a_playlist_is_known_by_its_first_bytes(server: str, path: str, *, expected: bool) -> None:
    """And they are not lost by looking."""

    def look() -> tuple[bool, bytes]:
        with closing(opened(f"http://{server}/{path}")) as body:
            return body.is_playlist(), body.read(100)

    found, start = await asyncio.to_thread(look)
    assert found is expected
    assert start


async def test_silence_is_bounded(server: str) -> None:
    """A read that gets nothing ends by its own limit."""

    def read_twice() -> None:
        with closing(opened(f"http://{server}/silence", read_timeout_s=0.05)) as body:
            body.read(100)
            body.read(100)

    with pytest.raises(TimeoutError):
        await asyncio.to_thread(read_twice)


async def test_a_read_that_waits_can_be_ended(server: str) -> None:
    """From another thread, at once."""
    body = await asyncio.to_thread(opened, f"http://{server}/silence")
    with closing(body):
        assert await asyncio.to_thread(body.read, 100) == b"begin"
        reading = asyncio.create_task(asyncio.to_thread(body.read, 100))
        body.abort()
        assert await asyncio.wait_for(reading, 8) == b""


def test_a_pipe_is_read_to_its_end() -> None:
    """And not beyond."""
    receive, send = os.pipe()
    body = InputBody(receive)
    os.write(send, b"abc")
    assert body.read(2) == b"ab"
    os.close(send)
    assert [body.read(9), body.read(9)] == [b"c", b""]
    os.close(receive)


def test_a_silent_pipe_can_be_left() -> None:
    """Silence is no end, but whoever reads can be told to stop."""
    receive, send = os.pipe()
    body, begun = InputBody(receive), threading.Event()

    def read() -> bytes:
        begun.set()
        return body.read(9)

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read)
        begun.wait(10)
        assert not reading.done()
        body.abort()
        assert reading.result(10) == b""
    os.close(send)
    os.close(receive)
