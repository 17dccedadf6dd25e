"""The bounded queue in front of the detector."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry

from pipeline_ver2.errors import DeadlineShed, EngineFailed, QueueFull
from serving.workers.stage1_queue import InferenceQueue, Timed


class Calls:
    """Blocking calls that tell when they start and end when released."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.started = threading.Event()
        self.release = threading.Event()

    def call(self, name: str) -> Callable[[], str]:
        """A call that notes its turn and gives its name back."""

        def work() -> str:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.order.append(name)
            self.started.set()
            try:
                assert self.release.wait(20)
            finally:
                self.at_once -= 1
            return name

        return work


@pytest.fixture
def registry() -> CollectorRegistry:
    """The queue's metrics."""
    return CollectorRegistry()


@pytest.fixture
async def queue(registry: CollectorRegistry) -> AsyncIterator[InferenceQueue]:
    """A queue with two places."""
    made = InferenceQueue(2, registry)
    yield made
    made.close()


@pytest.fixture
def calls() -> Calls:
    """Calls to queue."""
    return Calls()


async def _occupied(queue: InferenceQueue, calls: Calls) -> asyncio.Task[Timed[str]]:
    """The queue with a call in the thread."""
    task = asyncio.create_task(queue.run(calls.call("first")))
    assert await asyncio.to_thread(calls.started.wait, 10)
    return task


async def _queued(queue: InferenceQueue, calls: Calls, *names: str) -> list[asyncio.Task[Timed[str]]]:
    tasks = [asyncio.create_task(queue.run(calls.call(name))) for name in names]
    await asyncio.sleep(0)
    return tasks


async def test_one_at_a_time_in_order(queue: InferenceQueue, calls: Calls, registry: CollectorRegistry) -> None:
    """Calls run alone and in the order they came; waiting and working are timed apart."""
    first = await _occupied(queue, calls)
    second, third = await _queued(queue, calls, "second", "third")
    assert (queue.running, queue.waiting) == (True, 2)
    queued = time.monotonic()
    assert registry.get_sample_value("zroact_stage1_queue_depth") == 2
    held_s = time.monotonic() - queued
    calls.release.set()
    done = [await task for task in (first, second, third)]
    assert [timed.value for timed in done] == calls.order == ["first", "second", "third"]
    assert calls.most_at_once == 1
    assert min(done[0].run_s, done[1].queue_s, done[2].queue_s) >= held_s
    assert (queue.running, queue.waiting) == (False, 0)
    assert registry.get_sample_value("zroact_stage1_run_seconds_count") == 3
    assert registry.get_sample_value("zroact_stage1_wait_seconds_count") == 3


async def test_a_full_queue_refuses(queue: InferenceQueue, calls: Calls) -> None:
    """One more than there are places is refused with a hint when to come back, and costs nobody a place."""
    first = await _occupied(queue, calls)
    waiting = await _queued(queue, calls, "second", "third")
    with pytest.raises(QueueFull, match=r"stage1\.max_queue") as caught:
        await asyncio.wait_for(queue.run(calls.call("fourth")), timeout=5)
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 0
    calls.release.set()
    await asyncio.gather(first, *waiting)
    assert (await queue.run(calls.call("fifth"))).value == "fifth"
    assert "fourth" not in calls.order


async def test_a_cancelled_caller_leaves_the_queue(queue: InferenceQueue, calls: Calls) -> None:
    """Who goes while waiting is never run; those behind move up."""
    first = await _occupied(queue, calls)
    second, third = await _queued(queue, calls, "second", "third")
    second.cancel()
    await asyncio.wait({second})
    assert queue.waiting == 1
    calls.release.set()
    await asyncio.gather(first, third)
    assert calls.order == ["first", "third"]


async def test_the_turn_is_the_threads_not_the_callers(queue: InferenceQueue, calls: Calls) -> None:
    """A caller cancelled while its call runs does not let the next one in before the thread has ended."""
    first = await _occupied(queue, calls)
    (second,) = await _queued(queue, calls, "second")
    first.cancel()
    await asyncio.wait({first})
    await asyncio.sleep(0)
    assert (queue.running, queue.waiting) == (True, 1)
    assert calls.order == ["first"]
    calls.release.set()
    assert (await second).value == "second"
    assert calls.most_at_once == 1


async def test_a_deadline_ends_the_waiting(queue: InferenceQueue, calls: Calls) -> None:
    """What cannot start in time is shed while it waits, or at once if it is late already; neither runs."""
    first = await _occupied(queue, calls)
    with pytest.raises(DeadlineShed, match="before the detector was free"):
        await queue.run(calls.call("soon"), deadline_at=time.monotonic() + 0.02)
    assert queue.waiting == 0
    calls.release.set()
    await first
    with pytest.raises(DeadlineShed, match="had passed"):
        await queue.run(calls.call("late"), deadline_at=time.monotonic() - 1)
    in_time = await queue.run(calls.call("in time"), deadline_at=time.monotonic() + 20)
    assert calls.order == ["first", in_time.value]


async def test_a_failing_call_gives_its_turn_back(queue: InferenceQueue, calls: Calls) -> None:
    """An error reaches its caller, and the next call runs."""

    def broken() -> str:
        raise EngineFailed("broken")

    calls.release.set()
    with pytest.raises(EngineFailed, match="broken"):
        await queue.run(broken)
    assert (await queue.run(calls.call("next"))).value == "next"


async def test_an_abandoned_failing_call_is_quiet(queue: InferenceQueue, calls: Calls) -> None:
    """A call that fails after its caller has gone gives its turn back and warns nobody."""

    def broken() -> str:
        calls.call("broken")()
        raise EngineFailed("broken")

    task = asyncio.create_task(queue.run(broken))
    assert await asyncio.to_thread(calls.started.wait, 10)
    task.cancel()
    await asyncio.wait({task})
    calls.release.set()
    assert (await queue.run(calls.call("next"))).value == "next"


async def test_a_closed_queue_takes_nothing(queue: InferenceQueue, calls: Calls) -> None:
    """After closing, a call fails instead of hanging, and holds no turn."""
    queue.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        await queue.run(calls.call("late"))
    assert not queue.running
