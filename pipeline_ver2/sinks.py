"""Where news of events goes: an outlet each, with a bounded queue, so that none waits for another, nor the run for any.

A sink delivers one piece of news at a time, in order. What cannot be delivered is tried again, later each time. When
the queue is full, an update goes first, else the oldest.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from pipeline_ver2.config_events import WebhookConfig
from pipeline_ver2.errors import SinkError
from pipeline_ver2.events import Notice
from pipeline_ver2.webhook import Webhook, message

log = logging.getLogger(__name__)

MAX_WAIT_S = 60.0
"""Longest wait between two tries."""


class Sink(Protocol):
    """Somebody who is told of events, from enter to exit; neither of which waits for anybody for long."""

    name: str

    async def deliver(self, notice: Notice) -> None:
        """Deliver a piece of news.

        Raises:
            SinkError: It could not be delivered.
        """

    async def __aenter__(self) -> Self:
        """Begin."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of everything."""


class WebhookSink:
    """A webhook that is told of events."""

    def __init__(self, config: WebhookConfig) -> None:
        self._webhook = Webhook(config)
        self.name = f"webhook {self._webhook.place}"

    async def __aenter__(self) -> Self:
        await self._webhook.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._webhook.__aexit__(kind, error, trace)

    async def deliver(self, notice: Notice) -> None:
        """Post the event as JSON.

        Raises:
            SinkError: It was not taken.
        """
        event = notice.event
        await self._webhook.send(event.message_id, message(f"event.{event.state}", event.at, event))


class Outlet:
    """A sink behind a bounded queue, at work from enter to exit.

    Args:
        sink: Who is told.
        queue_size: How many pieces of news may wait.
        retries: How often one is tried again; None goes on until it is delivered or the run is over.
        retry_s: Time before the second try; it doubles with every further one.
    """

    def __init__(self, sink: Sink, *, queue_size: int, retries: int | None, retry_s: float) -> None:
        self._sink = sink
        self._queue_size = queue_size
        self._retries = retries
        self._retry_s = retry_s
        self._queue: deque[Notice] = deque()
        self._more, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._work_task: asyncio.Task[None] | None = None
        self._in_hand = 0
        self.problem: str | None = None
        """The last one."""
        self.told = 0
        self.lost: Counter[str] = Counter()
        """What was not delivered, by reason."""

    async def __aenter__(self) -> Self:
        await self._sink.__aenter__()
        self._work_task = asyncio.create_task(self._work(), name=f"outlet {self._sink.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._work_task is not None:
                self._work_task.cancel()
                await asyncio.wait([self._work_task])
                defect = None if self._work_task.cancelled() else self._work_task.exception()
                if defect is not None:
                    log.error("events: %s: ended by a defect of this program", self._sink.name, exc_info=defect)
        finally:
            self._lose("unsent", len(self._queue) + self._in_hand)
            self._queue.clear()
            await self._sink.__aexit__(kind, error, trace)

    def offer(self, notice: Notice) -> None:
        """Take a piece of news; never waits."""
        self.told += 1
        if len(self._queue) >= self._queue_size:
            self._queue.remove(next((old for old in self._queue if old.event.state == "updated"), self._queue[0]))
            self._lose("queue_full")
        self._queue.append(notice)
        self._more.set()
        self._idle.clear()

    async def drain(self) -> None:
        """Wait until all has been delivered or given up."""
        await self._idle.wait()

    @property
    def shortfall(self) -> str | None:
        """What was not delivered, in a line; None if all was."""
        if not self.lost:
            return None
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(self.lost.items()))
        problem = "" if self.problem is None else f"; last problem: {self.problem}"
        return f"events: {self._sink.name}: {self.lost.total()} of {self.told} not delivered ({reasons}){problem}"

    async def _work(self) -> None:
        while True:
            await self._more.wait()
            notice = self._queue.popleft()
            self._in_hand = 1
            await self._deliver(notice)
            self._in_hand = 0
            if not self._queue:
                self._more.clear()
                self._idle.set()

    async def _deliver(self, notice: Notice) -> None:
        tries, wait_s = 0, self._retry_s
        while True:
            try:
                await self._sink.deliver(notice)
            except SinkError as error:
                self._note(str(error))
                tries += 1
                if not error.retryable or (self._retries is not None and tries > self._retries):
                    self._lose(error.reason)
                    return
                pause_s = min(max(wait_s, error.retry_after_s), MAX_WAIT_S)
            else:
                return
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - so that many do not come at once
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    def _note(self, problem: str) -> None:
        """Tell of a problem once, not at every try."""
        if problem != self.problem:
            log.warning("events: %s: %s", self._sink.name, problem)
        self.problem = problem

    def _lose(self, reason: str, number: int = 1) -> None:
        if number and reason not in self.lost:
            log.warning("events: %s: news is lost (%s)", self._sink.name, reason)
        if number:
            self.lost[reason] += number


async def flush(outlets: list[Outlet], within_s: float) -> None:
    """Wait until all outlets are empty, a bounded time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            for outlet in outlets:
                await outlet.drain()
