"""The queue in front of the detector: joining, refusing, leaving, shedding."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from pipeline_ver2.errors import DeadlineShed, EngineFailed, QueueFull, StageUnreachable
from serving.workers.stage1_engine import RawBatch, RawClips
from serving.workers.stage1_queue import BatchQueue, Timed

Clips = list[NDArray[np.uint8]]
Request = asyncio.Task[Timed[RawClips]]
MakeQueue = Callable[..., BatchQueue]


class Runs:
    """An engine whose output for a clip is the clip's number; it tells when a run starts and ends when released."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.started = threading.Event()
        self.release = threading.Event()
        self.breaks = False

    def run(self, clips: Sequence[NDArray[np.uint8]]) -> RawBatch:
        """Note the clips and wait."""
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.batches.append([int(clip[0]) for clip in clips])
        self.started.set()
        try:
            assert self.release.wait(20)
        finally:
            self.at_once -= 1
        if self.breaks:
            raise EngineFailed("broken")
        return RawBatch([clip.astype(np.float32) for clip in clips], padded=1)


async def _until_waiting(queue: BatchQueue, number: int) -> None:
    """As many requests wait."""
    async with asyncio.timeout(20):
        while queue.waiting != number:  # noqa: ASYNC110 - the queue tells nobody
            await asyncio.sleep(0)


@pytest.fixture
def registry() -> CollectorRegistry:
    """The queue's metrics."""
    return CollectorRegistry()


@pytest.fixture
def runs() -> Runs:
    """The engine."""
    return Runs()


@pytest.fixture
async def make_queue(registry: CollectorRegistry, runs: Runs) -> AsyncIterator[MakeQueue]:
    """Makes a queue before the engine, for batches of at most four clips."""
    made: list[BatchQueue] = []

    def make(*, max_waiting: int = 8, max_wait_s: float = 0, chunk: int | None = None) -> BatchQueue:
        queue = BatchQueue(4, max_waiting, max_wait_s, registry)
        queue.serve(runs.run, chunk=chunk)
        made.append(queue)
        return queue

    yield make
    runs.release.set()
    for queue in made:
        queue.close()


def _clips(*numbers: int) -> Clips:
    return [np.asarray([number], np.uint8) for number in numbers]


def _numbers(timed: Timed[RawClips]) -> list[int]:
    return [int(raw[0]) for raw in timed.value if not isinstance(raw, EngineFailed)]


async def _occupied(queue: BatchQueue, runs: Runs) -> Request:
    """The queue with clip 0 in the engine."""
    task = asyncio.create_task(queue.detect(_clips(0)))
    assert await asyncio.to_thread(runs.started.wait, 10)
    return task


async def _queued(queue: BatchQueue, *requests: Sequence[int]) -> list[Request]:
    tasks = [asyncio.create_task(queue.detect(_clips(*numbers))) for numbers in requests]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.fault("A6")
async def test_what_waits_is_run_together(make_queue: MakeQueue, runs: Runs, registry: CollectorRegistry) -> None:
    """Requests that wait share a run as far as they fit, in their order, and each gets the output of its own clips."""
    queue = make_queue()
    first = await _occupied(queue, runs)
    waiting = await _queued(queue, [1, 2], [3], [4, 5], [6, 7])
    assert (queue.running, queue.waiting) == (True, 4)
    assert registry.get_sample_value("zroact_stage1_queue_depth") == 4
    runs.release.set()
    found = [_numbers(await task) for task in (first, *waiting)]
    assert found == [[0], [1, 2], [3], [4, 5], [6, 7]]
    assert runs.batches == [[0], [1, 2, 3], [4, 5, 6, 7]]
    assert (queue.running, queue.waiting, runs.most_at_once) == (False, 0, 1)
    assert registry.get_sample_value("zroact_stage1_batch_clips_sum") == 8
    assert registry.get_sample_value("zroact_stage1_batch_clips_count") == 3
    assert registry.get_sample_value("zroact_stage1_run_seconds_count") == 3
    assert registry.get_sample_value("zroact_stage1_wait_seconds_count") == 5
    assert registry.get_sample_value("zroact_stage1_padded_clips_total") == 3


async def test_waiting_and_running_are_timed_apart(make_queue: MakeQueue, runs: Runs) -> None:
    """The time in the queue is that of the request, the time of the run that of the whole batch."""
    queue = make_queue()
    first = await _occupied(queue, runs)
    waiting = await _queued(queue, [1], [2])
    queued = time.monotonic()
    assert await asyncio.to_thread(runs.started.is_set)
    held_s = time.monotonic() - queued
    runs.release.set()
    done = [await task for task in (first, *waiting)]
    assert min(done[0].run_s, done[1].queue_s, done[2].queue_s) >= held_s
    assert done[1].run_s == done[2].run_s < done[1].queue_s


@pytest.mark.parametrize(
    ("chunk", "batches"),
    [
        (1, [[0], [1], [2], [3]]),  # a fixed batch of 1: company would only make a request wait longer
        (3, [[0], [1, 2, 3]]),
        (2, [[0], [1, 2], [3]]),
        (None, [[0], [1, 2, 3]]),
    ],
)
async def test_an_engine_in_chunks_fills_its_last_chunk(
    make_queue: MakeQueue, runs: Runs, chunk: int | None, batches: list[list[int]]
) -> None:
    """Where a run costs the same however many clips it has, joining fills its last chunk and no further one."""
    queue = make_queue(chunk=chunk)
    first = await _occupied(queue, runs)
    waiting = await _queued(queue, [1], [2], [3])
    runs.release.set()
    assert [_numbers(await task) for task in (first, *waiting)] == [[0], [1], [2], [3]]
    assert runs.batches == batches


async def test_a_request_larger_than_a_chunk_stays_whole(make_queue: MakeQueue, runs: Runs) -> None:
    """Three clips before an engine of two take two chunks; the one clip that fits into the second joins them."""
    queue = make_queue(chunk=2)
    first = await _occupied(queue, runs)
    waiting = await _queued(queue, [1, 2, 3], [4], [5])
    runs.release.set()
    await asyncio.gather(first, *waiting)
    assert runs.batches == [[0], [1, 2, 3, 4], [5]]


async def test_a_free_engine_does_not_wait_for_nobody(make_queue: MakeQueue, runs: Runs) -> None:
    """If no further request is arriving, a run starts at once, however long it might wait."""
    queue = make_queue(max_wait_s=600)
    runs.release.set()
    assert _numbers(await asyncio.wait_for(queue.detect(_clips(1)), 20)) == [1]


async def test_a_free_engine_waits_for_what_arrives(make_queue: MakeQueue, runs: Runs) -> None:
    """While the body of another request arrives, a request waits for it; both run together as soon as it is there."""
    queue = make_queue(max_wait_s=600)
    runs.release.set()
    with queue.arriving():
        (first,) = await _queued(queue, [1])
        assert (queue.running, queue.waiting) == (False, 1)
    (second,) = await _queued(queue, [2])
    assert [_numbers(await task) for task in (first, second)] == [[1], [2]]
    assert runs.batches == [[1, 2]]


async def test_a_full_batch_waits_for_nothing(make_queue: MakeQueue, runs: Runs) -> None:
    """With all the clips a run can take, it starts whatever may still arrive."""
    queue = make_queue(max_wait_s=600)
    runs.release.set()
    with queue.arriving():
        tasks = await _queued(queue, [1, 2], [3, 4])
        await asyncio.gather(*tasks)
    assert runs.batches == [[1, 2, 3, 4]]


async def test_the_wait_for_company_is_bounded(make_queue: MakeQueue, runs: Runs) -> None:
    """A body that never comes to its end holds nobody up for longer than `max_wait_s`."""
    queue = make_queue(max_wait_s=0.02)
    runs.release.set()
    with queue.arriving():
        timed = await queue.detect(_clips(1))
    assert timed.queue_s >= 0.02


async def test_a_full_queue_refuses(make_queue: MakeQueue, runs: Runs) -> None:
    """One more than there are places is refused with a hint when to come back, and costs nobody a place."""
    queue = make_queue(max_waiting=2)
    first = await _occupied(queue, runs)
    waiting = await _queued(queue, [1], [2])
    with pytest.raises(QueueFull, match=r"stage1\.max_queue") as caught:
        await asyncio.wait_for(queue.detect(_clips(3)), timeout=5)
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 0
    runs.release.set()
    await asyncio.gather(first, *waiting)
    assert _numbers(await queue.detect(_clips(4))) == [4]
    assert runs.batches == [[0], [1, 2], [4]]


async def test_a_cancelled_caller_leaves_the_queue(make_queue: MakeQueue, runs: Runs) -> None:
    """Who goes while waiting is never run; those behind move up."""
    queue = make_queue()
    first = await _occupied(queue, runs)
    second, third = await _queued(queue, [1, 2], [3])
    second.cancel()
    await asyncio.wait({second})
    assert queue.waiting == 1
    runs.release.set()
    assert _numbers(await third) == [3]
    await first
    assert runs.batches == [[0], [3]]


async def test_the_engine_is_the_threads_not_the_callers(make_queue: MakeQueue, runs: Runs) -> None:
    """A caller cancelled while its run goes on does not let the next one in before the thread has ended."""
    queue = make_queue()
    first = await _occupied(queue, runs)
    (second,) = await _queued(queue, [1])
    first.cancel()
    await asyncio.wait({first})
    await asyncio.sleep(0)
    assert (queue.running, queue.waiting, runs.batches) == (True, 1, [[0]])
    runs.release.set()
    assert _numbers(await second) == [1]
    assert runs.most_at_once == 1


async def test_a_deadline_ends_the_waiting(make_queue: MakeQueue, runs: Runs) -> None:
    """What cannot start in time is shed while it waits, or at once if it is late already; neither runs."""
    queue = make_queue()
    first = await _occupied(queue, runs)
    with pytest.raises(DeadlineShed, match="before the detector was free"):
        await queue.detect(_clips(1), deadline_at=time.monotonic() + 0.02)
    assert queue.waiting == 0
    runs.release.set()
    await first
    with pytest.raises(DeadlineShed, match="had passed"):
        await queue.detect(_clips(2), deadline_at=time.monotonic() - 1)
    await queue.detect(_clips(3), deadline_at=time.monotonic() + 20)
    assert runs.batches == [[0], [3]]


async def test_a_run_that_breaks_is_told_to_all_in_it(make_queue: MakeQueue, runs: Runs) -> None:
    """An error of the engine itself reaches every caller of that run that is still there; the next run goes on."""
    queue = make_queue()
    runs.breaks = True
    first = await _occupied(queue, runs)
    waiting = await _queued(queue, [1], [2])
    first.cancel()
    await asyncio.wait({first})
    runs.release.set()
    for task in waiting:
        with pytest.raises(EngineFailed, match="broken"):
            await task
    runs.breaks = False
    assert _numbers(await queue.detect(_clips(3))) == [3]


async def test_a_closed_queue_lets_nobody_wait(make_queue: MakeQueue, runs: Runs) -> None:
    """Closing refuses what waits and what comes, instead of letting it hang."""
    queue = make_queue()
    first = await _occupied(queue, runs)
    (waiting,) = await _queued(queue, [1])
    queue.close()
    with pytest.raises(StageUnreachable, match="stopping"):
        await waiting
    runs.release.set()
    await first
    with pytest.raises(RuntimeError, match="shutdown"):
        await queue.detect(_clips(2))
    assert (queue.running, queue.waiting) == (False, 0)


async def test_other_work_shares_the_thread(make_queue: MakeQueue) -> None:
    """What loads the engine runs in the thread that later runs it."""
    queue = make_queue()
    assert (await queue.call(threading.current_thread)).name.startswith("detector")


async def test_clients_take_turns(make_queue: MakeQueue, runs: Runs) -> None:
    """One that came late with one request does not wait behind all of another's; each one's own stay in order."""
    queue = make_queue()
    running = await _occupied(queue, runs)
    tasks = [asyncio.create_task(queue.detect(_clips(*range(n, n + 4)), client="big")) for n in (10, 20, 30)]
    tasks += [asyncio.create_task(queue.detect(_clips(*range(n, n + 4)), client="small")) for n in (40, 50)]
    await _until_waiting(queue, 5)
    runs.release.set()
    await asyncio.gather(running, *tasks)
    assert [batch[0] for batch in runs.batches] == [0, 10, 40, 20, 50, 30]


async def test_a_full_queue_makes_room_for_another_client(make_queue: MakeQueue, runs: Runs) -> None:
    """The last request of whoever waits with the most goes; a client with as many is refused itself."""
    queue = make_queue(max_waiting=3)
    running = await _occupied(queue, runs)
    big = [asyncio.create_task(queue.detect(_clips(number), client="big")) for number in (1, 2, 3)]
    await _until_waiting(queue, 3)
    small = asyncio.create_task(queue.detect(_clips(4), client="small"))
    with pytest.raises(QueueFull, match="most of them this client's"):
        await big[2]
    for client in ("big", "small"):
        with pytest.raises(QueueFull, match="3 requests wait"):
            await queue.detect(_clips(5), client=client)
    runs.release.set()
    await asyncio.gather(running, *big[:2], small)
    assert runs.batches == [[0], [1, 4, 2]]
