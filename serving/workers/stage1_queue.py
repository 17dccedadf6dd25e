"""The bounded queue in front of the detector: one call at a time, first come first served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram

from pipeline_ver2.errors import DeadlineShed, QueueFull

T = TypeVar("T")

_SMOOTHING = 0.2
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.175, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A result, how long it waited for its turn, and how long it was worked on, in seconds."""

    value: T
    queue_s: float
    run_s: float


class InferenceQueue:
    """Owns the one thread the detector runs in."""

    def __init__(self, max_waiting: int, registry: CollectorRegistry) -> None:
        self.max_waiting = max_waiting
        self.waiting = 0
        self._typical_s = 0.1
        self._turn = asyncio.Lock()  # wakes its waiters in their order
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="detector")
        depth = Gauge("zroact_stage1_queue_depth", "Requests that wait for the detector.", registry=registry)
        depth.set_function(lambda: self.waiting)
        self._wait = Histogram(
            "zroact_stage1_wait_seconds", "Time from admission to the detector.", buckets=_BUCKETS, registry=registry
        )
        self._run = Histogram("zroact_stage1_run_seconds", "Time in the detector.", buckets=_BUCKETS, registry=registry)

    @property
    def running(self) -> bool:
        """A call is in the detector's thread."""
        return self._turn.locked()

    async def run(self, work: Callable[[], T], deadline_at: float | None = None) -> Timed[T]:
        """Do the work in the detector's thread when its turn comes.

        A caller cancelled while it waits leaves the queue. Cancelled while it runs, it leaves the turn to the thread,
        which gives it on when it really ends.

        Args:
            work: The blocking call.
            deadline_at: On the clock of `time.monotonic`; a call that cannot start before it is not started.

        Raises:
            QueueFull: `max_waiting` calls wait already.
            DeadlineShed: The deadline came first.
        """
        if self.waiting >= self.max_waiting:
            retry_after_s = self._typical_s * self.waiting
            raise QueueFull(f"{self.waiting} requests wait already (stage1.max_queue)", retry_after_s=retry_after_s)
        admitted = time.monotonic()
        left_s = None if deadline_at is None else deadline_at - admitted
        if left_s is not None and left_s <= 0:
            raise DeadlineShed("the deadline had passed when the request came")
        self.waiting += 1
        try:
            async with asyncio.timeout(left_s):
                await self._turn.acquire()
        except TimeoutError as error:
            raise DeadlineShed("the deadline came before the detector was free") from error
        finally:
            self.waiting -= 1
        return await self._in_thread(work, time.monotonic() - admitted)

    def close(self) -> None:
        """Take no more work; do not wait for what runs."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], T], queue_s: float) -> Timed[T]:
        self._wait.observe(queue_s)
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor, _timed, work)
        except RuntimeError:  # closed meanwhile
            self._turn.release()
            raise
        future.add_done_callback(self._next_turn)
        value, run_s = await asyncio.shield(future)
        self._run.observe(run_s)
        self._typical_s += _SMOOTHING * (run_s - self._typical_s)
        return Timed(value, queue_s, run_s)

    def _next_turn(self, future: asyncio.Future[tuple[T, float]]) -> None:
        self._turn.release()
        if not future.cancelled():
            future.exception()  # its caller may be gone; then nobody else would look at it


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.monotonic()
    value = work()
    return value, time.monotonic() - started
