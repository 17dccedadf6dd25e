"""Closed-loop load and its arithmetic."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AbstractAsyncContextManager

import pytest

from serving.bench.stage1_http import HttpRequest
from serving.bench.stage1_load import WARM_UP_REQUESTS, LoadFigures, latency_dict, load
from tests.serving.bench.wire_server import serving

BODY = b"body"
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer-Timing: queue;dur=5, run;dur=1\r\n\r\nok"
FAILURE = b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno"


def counting(seen: list[bytes], *, good: int | None = None) -> AbstractAsyncContextManager[int]:
    """A server that notes the heads of requests and answers the first `good` of them well."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(len(BODY))
            seen.append(head)
            writer.write(REPLY if good is None or len(seen) <= good else FAILURE)
            await writer.drain()

    return serving(serve)


async def loaded(port: int, *, clients: int = 3) -> LoadFigures:
    """A short load with a key of its own in every request."""
    keys = itertools.count()
    request = HttpRequest.post("/", BODY, {})
    return await load(port, lambda: request.with_header("Key", str(next(keys))), clips=4, clients=clients, seconds=0.1)


async def test_every_answer_counts_once() -> None:
    """Clips of all answers but the warm-up's; each request was a new one."""
    seen: list[bytes] = []
    async with counting(seen) as port:
        figures = await loaded(port)
    assert figures.failures == ()
    assert figures.clips == 4 * (len(seen) - 3 * WARM_UP_REQUESTS)
    assert figures.clips == 4 * len(figures.latencies_s) > 0
    assert len(set(seen)) == len(seen)
    assert figures.clips_per_s == pytest.approx(figures.clips / figures.wall_s)


async def test_time_outside_the_engine_is_what_the_reply_leaves() -> None:
    """Waiting in the server's queue is not the engine's time."""
    async with counting([]) as port:
        figures = await loaded(port, clients=1)
    assert figures.outside_s == pytest.approx([latency - 1e-3 for latency in figures.latencies_s])


async def test_failures_are_told() -> None:
    """A client stops at its first failure; what was answered before counts."""
    async with counting([], good=3 * WARM_UP_REQUESTS + 2) as port:
        figures = await loaded(port)
    assert figures.clips == 8
    assert len(figures.failures) == 3
    assert "answered 500: no" in figures.failures[0]


async def test_a_server_that_fails_at_once() -> None:
    """Nothing is measured."""
    async with counting([], good=0) as port:
        figures = await loaded(port)
    assert (figures.clips, len(figures.failures)) == (0, 3)


def test_percentiles() -> None:
    """In milliseconds; of nothing there are none."""
    assert latency_dict([0.001, 0.002, 0.003]) == {"p50_ms": 2.0, "p99_ms": 2.98}
    assert latency_dict([]) == {"p50_ms": None, "p99_ms": None}


def test_failures_of_two_loads_add_up() -> None:
    """Those before come first."""
    first, second = (LoadFigures(1, 1.0, (), failures=(said,)) for said in ("early", "late"))
    assert second.failing_too(first).failures == ("early", "late")
