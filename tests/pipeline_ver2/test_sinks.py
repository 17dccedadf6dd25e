"""Outlets: bounded queues in front of sinks, tries, and what is lost; webhooks against a real server."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

import pytest
from aiohttp import web

from pipeline_ver2.config_events import WebhookConfig
from pipeline_ver2.errors import SinkError, SinkRefused
from pipeline_ver2.events import Notice
from pipeline_ver2.sinks import Outlet, WebhookSink, flush
from tests.news import notice
from tests.receiver import PATIENCE_S, always, hang, receiver


class Scripted:
    """A sink that fails as often as it is told to, then delivers, and waits while its gate is shut."""

    name = "scripted"

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.delivered: list[str] = []
        self.tries = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.reached = asyncio.Event()
        self.is_open = False

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False

    async def deliver(self, news: Notice) -> None:
        """Fail, or take it."""
        self.tries += 1
        self.reached.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.delivered.append(news.event.message_id)


def outlet(sink: Scripted | WebhookSink, *, queue_size: int = 8, retries: int | None = 2) -> Outlet:
    """An outlet that does not wait for long."""
    return Outlet(sink, queue_size=queue_size, retries=retries, retry_s=0.001)


async def test_nothing_to_tell() -> None:
    """An outlet that was told nothing is drained and lacks nothing."""
    sink = Scripted()
    async with outlet(sink) as empty:
        assert sink.is_open
        await empty.drain()
    assert (sink.is_open, empty.shortfall) == (False, None)


async def test_news_is_delivered_in_order() -> None:
    """One by one, all of it."""
    sink = Scripted()
    async with outlet(sink) as out:
        for number in range(5):
            out.offer(notice(number))
        await flush([out], PATIENCE_S)
        out.offer(notice(9))
        await flush([out], PATIENCE_S)
    assert sink.delivered == [f"run-{number}_begun_{number}" for number in (0, 1, 2, 3, 4, 9)]
    assert out.shortfall is None


async def test_a_failure_is_tried_again() -> None:
    """What comes through in the end is not lost, and what waits behind it follows."""
    sink = Scripted(SinkError("once"), SinkError("twice"))
    async with outlet(sink) as out:
        out.offer(notice(0))
        out.offer(notice(1))
        await flush([out], PATIENCE_S)
    assert (sink.delivered, sink.tries, out.shortfall) == (["run-0_begun_0", "run-1_begun_1"], 4, None)


async def test_tries_are_bounded() -> None:
    """After `retries` more it is lost, counted by the reason of the last, and the next one's turn comes."""
    sink = Scripted(*(SinkError(f"HTTP 500, {number}", reason="http") for number in range(3)))
    async with outlet(sink) as out:
        out.offer(notice(0))
        out.offer(notice(1))
        await flush([out], PATIENCE_S)
    assert (sink.delivered, sink.tries) == (["run-1_begun_1"], 4)
    assert out.shortfall == "events: scripted: 1 of 2 not delivered (1 http); last problem: HTTP 500, 2"


async def test_what_is_refused_is_not_tried_again() -> None:
    """Once is enough."""
    sink = Scripted(SinkRefused("moved", reason="redirect"))
    async with outlet(sink) as out:
        out.offer(notice(0))
        await flush([out], PATIENCE_S)
    assert (sink.tries, dict(out.lost)) == (1, {"redirect": 1})


async def test_a_full_queue_loses_updates_first() -> None:
    """While a sink hangs, who tells it never waits: an update goes first, else the oldest; what is left is unsent."""
    sink = Scripted()
    sink.gate.clear()
    async with outlet(sink, queue_size=3) as out:
        out.offer(notice(0))
        await sink.reached.wait()
        for news in (notice(1), notice(1, "updated"), notice(1, "ended"), notice(2), notice(2, "ended")):
            out.offer(news)
        assert dict(out.lost) == {"queue_full": 2}
        await flush([out], 0.01)
        sink.gate.set()
        await flush([out], PATIENCE_S)
        sink.gate.clear()
        sink.reached.clear()
        out.offer(notice(3))
        out.offer(notice(4))
        await sink.reached.wait()
    assert sink.delivered == ["run-0_begun_0", "run-1_ended_1", "run-2_begun_2", "run-2_ended_2"]
    assert out.shortfall == "events: scripted: 4 of 8 not delivered (2 queue_full, 2 unsent)"


async def test_a_problem_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not at every try."""
    sink = Scripted(*(SinkError("away") for _ in range(3)))
    with caplog.at_level(logging.WARNING):
        async with outlet(sink, retries=None) as out:
            out.offer(notice(0))
            await flush([out], PATIENCE_S)
    assert [line.getMessage() for line in caplog.records] == ["events: scripted: away"]


async def test_a_defect_of_a_sink_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It ends the sink, not the run, and does not go unseen."""
    sink = Scripted(KeyError("defect"))
    async with outlet(sink) as out:
        out.offer(notice(0))
        await flush([out], 0.05)
    assert "ended by a defect" in caplog.text
    assert dict(out.lost) == {"unsent": 1}


async def test_cancelled_in_the_middle_it_lets_go() -> None:
    """Of its task and its sink, though the sink hangs."""
    sink = Scripted()
    sink.gate.clear()

    async def tell() -> None:
        async with outlet(sink) as out:
            out.offer(notice(0))
            await out.drain()

    task = asyncio.create_task(tell())
    await sink.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE_S)
    assert not sink.is_open
    assert [other for other in asyncio.all_tasks() if "outlet" in other.get_name()] == []


async def test_a_webhook_is_told_of_events() -> None:
    """The event as JSON, with an id that stays the same over all tries."""
    async with receiver() as server:

        async def fail_once(before: int) -> web.StreamResponse | None:
            return await always(500)(before) if before == 0 else None

        server.rule = fail_once
        async with outlet(WebhookSink(WebhookConfig(url=server.url))) as out:
            out.offer(notice(0, "ended"))
            await flush([out], PATIENCE_S)
    first, second = server.posts
    assert first.id == second.id == "run-0_ended_0"
    assert second.content["type"] == "event.ended"
    assert second.content["timestamp"] == "2026-01-02T03:04:05+00:00"
    told = second.content["data"]
    assert (told["id"], told["action"], told["reason"], told["best"]["index"]) == ("run-0", "walk", "over", 0)
    assert out.shortfall is None


async def test_a_webhook_that_hangs() -> None:
    """Holds up nothing but itself; what it was not told is counted."""
    async with receiver(hang) as server:
        async with outlet(WebhookSink(WebhookConfig(url=server.url)), queue_size=2) as out:
            out.offer(notice(0))
            await server.until(lambda: server.posts)
            for number in range(1, 6):
                out.offer(notice(number))
            await flush([out], 0.01)
        assert dict(out.lost) == {"queue_full": 3, "unsent": 3}
