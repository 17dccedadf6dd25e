"""Uploads that are too much, over real connections: refused early, in little memory, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.serving.conftest import Api, ServeApi

PIECE = bytes(range(256)) * 1024
HEAD = b'--edge\r\nContent-Disposition: form-data; name="video"; filename="a.mp4"\r\n\r\n'
TAIL = b"\r\n--edge--\r\n"
FORM = {"Content-Type": "multipart/form-data; boundary=edge"}
MEGABYTE = 1_000_000


def memory() -> int:
    """Bytes this process, which is server and client at once, has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def endless(megabytes: float, most: list[int]) -> AsyncIterator[bytes]:
    """A form with a video of this size, made while it is sent; notes the memory in use."""
    yield HEAD
    for _ in range(int(megabytes * MEGABYTE / len(PIECE)) + 1):
        yield PIECE
        most.append(memory())
    yield TAIL


async def send(api: Api, body: AsyncIterator[bytes]) -> tuple[int, dict[str, Any]]:
    """Post a body without an announced length."""
    async with aiohttp.ClientSession() as session, session.post(f"{api.url}/jobs", data=body, headers=FORM) as reply:
        return reply.status, await reply.json()


def is_clean(api: Api) -> bool:
    """Whether nothing of an upload is left."""
    return (api.leftovers(), api.queue.ids, api.store.counts()) == ([], [], {})


async def announced(api: Api, size: int, *more: str) -> tuple[bytes, dict[str, Any]]:
    """What comes for a head that tells of a body of this size, none of which is sent; the raw head and the problem."""
    host, _, port = api.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [
        "POST /jobs HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {FORM['Content-Type']}",
        f"Content-Length: {size}",
    ]
    writer.write("\r\n".join([*lines, *more, "", ""]).encode())
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        problem: dict[str, Any] = json.loads(await reader.readexactly(length))
    writer.close()
    return head, problem


@pytest.mark.fault("O7")
@pytest.mark.parametrize("more", [(), ("Expect: 100-continue",)])
async def test_an_announced_size_over_the_limit(serve_api: ServeApi, more: tuple[str, ...]) -> None:
    """413 before the body has come, and whoever asks first is not told to send it."""
    api = serve_api(max_upload_mb=1000)
    head, problem = await announced(api, 2_000_000_000, *more)
    assert head.startswith(b"HTTP/1.1 413 ")
    assert problem["code"] == "body_too_large"
    assert is_clean(api)


@pytest.mark.fault("O7")
@pytest.mark.parametrize(
    ("limit_mb", "sent_mb", "status"),
    [
        (40, 80, 413),
        (200, 80, 422),
        pytest.param(1000, 2000, 413, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
        pytest.param(3000, 2000, 422, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
async def test_a_body_of_unknown_size(serve_api: ServeApi, limit_mb: int, sent_mb: int, status: int) -> None:
    """Whether it is cut off at the limit or comes whole and is no video: in memory that does not grow with it."""
    api, used = serve_api(max_upload_mb=limit_mb), [memory()]
    found, problem = await send(api, endless(sent_mb, used))
    assert (found, problem["code"]) == (status, "body_too_large" if status == 413 else "video")
    assert max(used) - used[0] < 30 * MEGABYTE
    assert is_clean(api)


@pytest.mark.fault("O7")
async def test_a_connection_that_breaks_at_half(serve_api: ServeApi) -> None:
    """What had come is gone."""
    api, came = serve_api(), asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield HEAD
        for _ in range(8):
            yield PIECE
        came.set()
        await asyncio.Event().wait()

    sending = asyncio.create_task(send(api, half()))
    async with asyncio.timeout(30):
        await came.wait()
        while not any(path.stat().st_size for path in api.data.uploads.iterdir()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        sending.cancel()
        while api.leftovers():  # noqa: ASYNC110 - the server's thread cleans up
            await asyncio.sleep(0.01)
    assert is_clean(api)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond this size, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.fault("O7")
async def test_a_disk_that_takes_no_more(serve_api: ServeApi, film: bytes) -> None:
    """507 while the video comes; with room again, the same server takes a job."""
    api = serve_api()
    with largest_file(2 * MEGABYTE):
        status, problem = await send(api, endless(8, []))
    assert (status, problem["code"]) == (507, "storage_full")
    assert is_clean(api)

    async def whole() -> AsyncIterator[bytes]:
        yield HEAD + film + TAIL

    assert (await send(api, whole()))[0] == 202
