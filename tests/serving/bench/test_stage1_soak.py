"""The soak: load, and the memory of the process meanwhile."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pipeline_ver2.errors import StageError
from serving.bench.stage1_http import HttpRequest
from serving.bench.stage1_load import LoadFigures
from serving.bench.stage1_soak import SoakFigures, daemon_pid, rss_mb, soak
from tests.serving.bench.wire_server import serving

REQUEST = HttpRequest.post("/", b"body", {})


def of_samples(*rss_mb: float) -> SoakFigures:
    """A soak with these samples."""
    return SoakFigures(16, LoadFigures(4, 1.0, (1.0,)), rss_mb)


def test_growth_is_from_the_first_to_the_last_fifth() -> None:
    """A peak between them is none, one odd sample at an end neither."""
    assert of_samples(*[100.0] * 7, 300.0, *[100.0] * 7).growth_percent == 0
    assert of_samples(*[100.0] * 14, 300.0).growth_percent == 0
    assert of_samples(*[100.0] * 12, *[110.0] * 3).growth_percent == pytest.approx(10)
    assert of_samples(100.0).growth_percent == 0


async def test_memory_is_looked_at_while_the_server_works() -> None:
    """Samples are taken from the first moment to the end; the failure of a client is in the figures."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readexactly(len(REQUEST.head) + len(REQUEST.body)):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

    async with serving(serve) as port:
        figures = await soak(port, os.getpid(), lambda: REQUEST, clips=4, clients=2, seconds=0.2, sample_s=0.02)
    assert len(figures.rss_mb) >= 1
    assert all(sample > 10 for sample in figures.rss_mb)
    assert figures.load.clips > 0
    assert figures.as_dict()["failures"] == []


async def test_failures_of_the_warm_up_count() -> None:
    """A server that fails at once has failed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST.head) + len(REQUEST.body))
        writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with serving(serve) as port:
        figures = await soak(port, os.getpid(), lambda: REQUEST, clips=4, clients=2, seconds=0.1, sample_s=0.02)
    assert len(figures.load.failures) == 4


def test_the_daemon_s_process_is_the_last_one_announced(tmp_path: Path) -> None:
    """A restarted daemon writes to the same log."""
    log = tmp_path / "stage1.log"
    lines = ['{"event": "listening", "pid": 11}', "2026 [INFO] ready", '{"event": "listening", "pid": 12}', "more"]
    log.write_text("\n".join(lines), encoding="utf-8")
    assert daemon_pid(log) == 12


@pytest.mark.parametrize("text", ["", "nothing\n", '{"event": "listening"}\n', '{"event": "listening", "pid"\n'])
def test_a_log_without_a_process(tmp_path: Path, text: str) -> None:
    """The error names the log."""
    log = tmp_path / "stage1.log"
    log.write_text(text, encoding="utf-8")
    with pytest.raises(StageError, match=r"stage1\.log"):
        daemon_pid(log)


def test_a_process_that_is_gone() -> None:
    """Its memory cannot be read."""
    assert rss_mb(os.getpid()) > 10
    with pytest.raises(StageError, match="cannot be read"):
        rss_mb(2**22 + 1)  # above the largest process id
