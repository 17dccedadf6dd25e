"""The bounded queue in front of the detector: requests that wait are run together, clients take turns."""

from __future__ import annotations

import asyncio
import collections
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pipeline_ver2.errors import DeadlineShed, QueueFull, StageUnreachable
from serving.workers.stage1_engine import RawBatch, RawClips
from serving.workers.stage1_thread import DetectorThread
from serving.workers.turns import Turns

T = TypeVar("T")
Run = Callable[[Sequence[NDArray[np.uint8]]], RawBatch]

_SMOOTHING = 0.2
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.175, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CLIPS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A result, how long it waited for its turn, and how long the run it was part of took, in seconds."""

    value: T
    queue_s: float
    run_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A request that waits. `started` is done when its turn has come, `done` holds its clips' output."""

    client: str
    clips: Sequence[NDArray[np.uint8]]
    admitted: float
    started: asyncio.Future[float]
    done: asyncio.Future[tuple[RawClips, float]]


class BatchQueue:
    """Owns the one thread the detector runs in, and joins what waits for it.

    Clients take turns, each one's own requests being first come first served. A run takes the request whose turn it is
    and those behind it, as long as they fit into `max_batch` clips, or, for an engine that works in chunks, into the
    last chunk of the first request. An engine that is free waits for company at most `max_wait_s`, and only while the
    body of a further request is arriving. A full queue refuses the newcomer, or, if another client waits with more
    requests than it does, the last one of those.
    """

    def __init__(self, max_batch: int, max_waiting: int, max_wait_s: float, registry: CollectorRegistry) -> None:
        self.max_waiting = max_waiting
        self.running = False
        self._max_batch = max_batch
        self._max_wait_s = max_wait_s
        self._waiting: list[_Job] = []
        self._turns = Turns()
        self._arriving = 0
        self._timer: asyncio.TimerHandle | None = None
        self._run: Run | None = None
        self._chunk: int | None = None
        self._typical_s = 0.1
        self._thread = DetectorThread()
        depth = Gauge("zroact_stage1_queue_depth", "Requests that wait for the detector.", registry=registry)
        depth.set_function(lambda: self.waiting)
        self._wait_times = Histogram(
            "zroact_stage1_wait_seconds",
            "Time from admission to the run.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._run_times = Histogram(
            "zroact_stage1_run_seconds", "Time of a run of the detector.", buckets=_SECONDS, registry=registry
        )
        self._batches = Histogram("zroact_stage1_batch_clips", "Clips of a run.", buckets=_CLIPS, registry=registry)
        self._padded = Counter(
            "zroact_stage1_padded_clips", "Clips of no use, run to fill a batch up to its size.", registry=registry
        )

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    async def call(self, work: Callable[[], T]) -> T:
        """Do something else in the detector's thread, such as loading it."""
        return await self._thread.start(work)

    def serve(self, run: Run, *, chunk: int | None) -> None:
        """Name what runs the clips, as `Engine.run` does, and its `ModelInfo.chunk`. `detect` may be called then."""
        self._run, self._chunk = run, chunk

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Around the reading of a request that may be queued right afterwards: others wait a moment for it."""
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    async def detect(
        self, clips: Sequence[NDArray[np.uint8]], deadline_at: float | None = None, *, client: str = ""
    ) -> Timed[RawClips]:
        """Run clips, together with those of others.

        A caller cancelled while it waits leaves the queue, with its clips. Cancelled while it runs, it leaves the run
        to the thread.

        Args:
            clips: Of one request, each `(T, H, W, 3)` uint8 RGB at the model's size, one at least.
            deadline_at: On the clock of `time.monotonic`; a request that cannot start before it is not started.
            client: Who asks.

        Raises:
            QueueFull: `max_waiting` requests wait already, now or once a client that had fewer waiting came.
            DeadlineShed: The deadline came first.
        """
        if self.running and self.waiting >= self.max_waiting:
            self._make_room(client)
        admitted = time.monotonic()
        left_s = None if deadline_at is None else deadline_at - admitted
        if left_s is not None and left_s <= 0:
            raise DeadlineShed("the deadline had passed when the request came")
        loop = asyncio.get_running_loop()
        job = _Job(client, clips, admitted, loop.create_future(), loop.create_future())
        self._waiting.append(job)
        try:
            self._next_run()
            async with asyncio.timeout(left_s):
                queue_s = await job.started
        except TimeoutError as error:
            job.done.cancel()
            raise DeadlineShed("the deadline came before the detector was free") from error
        except BaseException:
            job.done.cancel()
            raise
        finally:
            if job in self._waiting:
                self._waiting.remove(job)
        raws, run_s = await job.done
        return Timed(raws, queue_s, run_s)

    def close(self) -> None:
        """Take no more work; do not wait for what runs."""
        self._thread.close()
        for job in self._waiting:
            if not job.started.done():
                job.started.set_exception(StageUnreachable("the daemon is stopping"))
        self._waiting.clear()

    def _make_room(self, client: str) -> None:
        """Refuse the last request of the client that waits with the most, or the newcomer if nobody has more."""
        said = f"{self.waiting} requests wait already (stage1.max_queue)"
        retry_after_s = self._typical_s * self.waiting
        counts = collections.Counter(job.client for job in self._waiting)
        longest = max(counts, key=lambda each: counts[each])
        if counts[longest] <= counts[client] + 1:
            raise QueueFull(said, retry_after_s=retry_after_s)
        last = next(job for job in reversed(self._waiting) if job.client == longest)
        self._waiting.remove(last)
        if not last.started.done():
            last.started.set_exception(QueueFull(f"{said}, most of them this client's", retry_after_s=retry_after_s))

    def _next_run(self) -> None:
        """Start a run if the detector is free and there is nothing to wait for."""
        if self.running or not self._waiting:
            return
        batch, full = self._next_batch()
        wait_s = batch[0].admitted + self._max_wait_s - time.monotonic()
        if not full and self._arriving and wait_s > 0:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._waited)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._start(batch)

    def _waited(self) -> None:
        self._timer = None
        self._next_run()

    def _next_batch(self) -> tuple[list[_Job], bool]:
        """The requests to run next, and whether no other could join them."""
        waiting = self._turns.order(self._waiting, lambda job: job.client)
        first = len(waiting[0].clips)
        room = self._max_batch if self._chunk is None else -(-first // self._chunk) * self._chunk
        sums = itertools.accumulate(len(job.clips) for job in waiting)
        fitting = sum(1 for total in sums if total <= room)
        batch = waiting[: max(1, fitting)]
        return batch, len(batch) < len(waiting) or sum(len(job.clips) for job in batch) >= room

    def _start(self, batch: list[_Job]) -> None:
        if self._run is None:
            raise RuntimeError("nothing to run: `serve` was not called")
        clips = [clip for job in batch for clip in job.clips]
        future = self._thread.start(partial(_timed, self._run, clips))
        future.add_done_callback(partial(self._finished, batch))
        self.running = True
        for job in batch:
            self._waiting.remove(job)
            self._turns.take(job.client)
        self._batches.observe(len(clips))
        now = time.monotonic()
        for job in batch:
            self._wait_times.observe(now - job.admitted)
            if not job.started.done():
                job.started.set_result(now - job.admitted)

    def _finished(self, batch: list[_Job], future: asyncio.Future[tuple[RawBatch, float]]) -> None:
        self.running = False
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            for job in batch:
                if not job.done.done():
                    job.done.cancel() if error is None else job.done.set_exception(error)
        else:
            self._share_out(batch, *future.result())
        self._next_run()

    def _share_out(self, batch: list[_Job], output: RawBatch, run_s: float) -> None:
        self._run_times.observe(run_s)
        self._padded.inc(output.padded)
        self._typical_s += _SMOOTHING * (run_s - self._typical_s)
        start = 0
        for job in batch:
            end = start + len(job.clips)
            if not job.done.done():
                job.done.set_result((output.clips[start:end], run_s))
            start = end


def _timed(run: Run, clips: Sequence[NDArray[np.uint8]]) -> tuple[RawBatch, float]:
    started = time.monotonic()
    output = run(clips)
    return output, time.monotonic() - started
