"""Files as replies."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from fastapi import FastAPI

from serving.stored_file import StoredFile
from tests.servers import served

CONTENT = b"0123456789"


async def ask(folder: Path, ranges: str) -> tuple[int, bytes]:
    """Status and body of a file of ten bytes, asked for with a `Range`."""
    (folder / "file").write_bytes(CONTENT)
    app = FastAPI()
    app.add_api_route("/file", lambda: StoredFile(folder / "file"), response_model=None)
    with served(app, until_ready=False) as url:
        async with aiohttp.ClientSession(url) as http, http.get("/file", headers={"Range": ranges}) as reply:
            return reply.status, await reply.read()


@pytest.mark.parametrize(
    ("ranges", "part"), [("bytes=2-4", b"234"), ("bytes=-2", b"89"), ("bytes=7-7", b"7"), ("BYTES=8-", b"89")]
)
async def test_parts_are_given(tmp_path: Path, ranges: str, part: bytes) -> None:
    """From, to, and both ends included."""
    assert await ask(tmp_path, ranges) == (206, part)


async def test_beyond_the_end_there_is_nothing(tmp_path: Path) -> None:
    """That is told."""
    assert (await ask(tmp_path, "bytes=99-"))[0] == 416


@pytest.mark.parametrize("ranges", ["lines=1-2", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-2", "bytes=1--2"])
async def test_what_is_not_understood_is_ignored(tmp_path: Path, ranges: str) -> None:
    """The whole file comes, as the standard has it."""
    assert await ask(tmp_path, ranges) == (200, CONTENT)
