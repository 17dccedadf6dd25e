"""How many requests an engine works on at once, and how many may wait: a bounded semaphore, first come first served.

The seam of the real-time scheduler: whatever orders, sheds or adapts offers the same `slot`, `lower_limit` and `stats`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pipeline_ver2.errors import DeadlineShed, QueueFull


@dataclass(frozen=True, slots=True)
class Slot:
    """A permit to work; `queue_s` is how long it was waited for."""

    queue_s: float


@dataclass(frozen=True, slots=True)
class AdmissionStats:
    """What admission is doing now, and has done: requests admitted, refused for a full queue, shed as too late."""

    limit: int
    running: int
    waiting: int
    admitted: int
    rejected: int
    shed: int


class Admission:
    """At most `limit` at work, at most `max_queue` waiting for it."""

    def __init__(self, limit: int, max_queue: int) -> None:
        self._limit = limit
        self._max_queue = max_queue
        self._queue: deque[asyncio.Future[None]] = deque()
        self._running = self._admitted = self._rejected = self._shed = 0
        self._mean_run_s = 1.0

    @asynccontextmanager
    async def slot(self, *, deadline_at: float | None = None) -> AsyncIterator[Slot]:
        """Wait for a permit, hold it for the body of the `async with`.

        Args:
            deadline_at: When the caller needs its answer, on the clock of `time.monotonic`.

        Raises:
            QueueFull: `max_queue` others wait already.
            DeadlineShed: The deadline passed before the work could begin.
        """
        asked = time.monotonic()
        await self._enter(deadline_at)
        began = time.monotonic()
        self._admitted += 1
        try:
            yield Slot(began - asked)
        finally:
            self._mean_run_s += 0.2 * (time.monotonic() - began - self._mean_run_s)
            self._leave()

    def lower_limit(self) -> None:
        """Work on one request fewer from now on, never on none: the engine ran out of memory."""
        self._limit = max(1, self._limit - 1)

    def stats(self) -> AdmissionStats:
        """The present figures."""
        return AdmissionStats(self._limit, self._running, len(self._queue), self._admitted, self._rejected, self._shed)

    async def _enter(self, deadline_at: float | None) -> None:
        if deadline_at is not None and deadline_at <= time.monotonic():
            self._shed += 1
            raise DeadlineShed("the deadline had passed when the request came")
        if self._running < self._limit and not self._queue:
            self._running += 1
            return
        if len(self._queue) >= self._max_queue:
            self._rejected += 1
            wait_s = self._mean_run_s * (len(self._queue) + 1) / self._limit
            raise QueueFull(f"{len(self._queue)} requests wait already (stage2.max_queue)", retry_after_s=wait_s)
        await self._wait(deadline_at)

    async def _wait(self, deadline_at: float | None) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        left_s = None if deadline_at is None else deadline_at - time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave()  # the turn came in the same moment: pass it on
            elif turn in self._queue:
                self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                self._shed += 1
                raise DeadlineShed("the deadline passed while the request waited") from error
            raise

    def _leave(self) -> None:
        """Give the permit to the first that waits, or back."""
        if self._running <= self._limit:
            while self._queue:
                turn = self._queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._running -= 1
