"""The bounded semaphore in front of the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from pipeline_ver2.errors import DeadlineShed, QueueFull
from serving.workers.admission import Admission


class Work:
    """Requests that hold their permit until told to let go."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.order: list[str] = []
        self.release = asyncio.Event()
        self.most = 0

    async def run(self, name: str, *, deadline_at: float | None = None) -> float:
        """Hold a permit; returns how long it was waited for."""
        async with self.admission.slot(deadline_at=deadline_at) as slot:
            self.order.append(name)
            self.most = max(self.most, self.admission.stats().running)
            await self.release.wait()
            return slot.queue_s


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until it is so."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


async def test_a_free_permit_is_taken_at_once() -> None:
    """Nothing waits where there is room, and the permit comes back."""
    admission = Admission(1, 1)
    async with admission.slot() as slot:
        assert slot.queue_s < 0.1
        assert admission.stats().running == 1
    assert admission.stats().running == 0
    assert admission.stats().admitted == 1


async def test_never_more_than_the_limit_and_first_come_first_served() -> None:
    """Twenty requests go through two at a time, in their order."""
    work = Work(Admission(2, 20))
    tasks = [asyncio.create_task(work.run(str(at))) for at in range(20)]
    await until(lambda: work.admission.stats().waiting == 18)
    assert work.order == ["0", "1"]
    work.release.set()
    waits = await asyncio.gather(*tasks)
    assert work.order == [str(at) for at in range(20)]
    assert work.most == 2
    assert waits[19] > 0
    assert (work.admission.stats().running, work.admission.stats().waiting) == (0, 0)


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    """One works, one waits, the third is told 429 with a time."""
    work = Work(Admission(1, 1))
    tasks = [asyncio.create_task(work.run(name)) for name in "ab"]
    await until(lambda: work.admission.stats().waiting == 1)
    with pytest.raises(QueueFull) as caught:
        await work.run("c")
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 0
    assert work.admission.stats().rejected == 1
    work.release.set()
    await asyncio.gather(*tasks)
    assert work.order == ["a", "b"]


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    """Its place goes to the next, and no permit is lost."""
    work = Work(Admission(1, 5))
    first, second, third = (asyncio.create_task(work.run(name)) for name in "abc")
    await until(lambda: work.admission.stats().waiting == 2)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert work.admission.stats().waiting == 1
    work.release.set()
    await asyncio.gather(first, third)
    assert work.order == ["a", "c"]


async def test_a_waiter_cancelled_as_its_turn_comes_passes_the_permit_on() -> None:
    """The moment between being called and taking the permit loses nothing."""
    admission = Admission(1, 5)
    work = Work(admission)
    holder = admission.slot()
    await holder.__aenter__()
    second, third = asyncio.create_task(work.run("b")), asyncio.create_task(work.run("c"))
    await until(lambda: admission.stats().waiting == 2)
    await holder.__aexit__(None, None, None)  # calls the second, which has not run yet
    second.cancel()
    work.release.set()
    await asyncio.gather(second, third, return_exceptions=True)
    assert work.order == ["c"]
    assert admission.stats().running == 0


@pytest.mark.fault("O4")
async def test_permits_are_all_back_after_many_failures() -> None:
    """After 200 requests of which every fifth is cancelled and every seventh raises, the full limit is there."""
    admission = Admission(3, 300)
    most = 0

    async def request(number: int) -> None:
        nonlocal most
        async with admission.slot():
            most = max(most, admission.stats().running)
            await asyncio.sleep(0)
            if number % 7 == 0:
                raise ValueError
            if number % 5 == 0:
                await asyncio.Event().wait()

    tasks = [asyncio.create_task(request(number)) for number in range(200)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        for number, task in enumerate(tasks):
            if number % 5 == 0 and admission.stats().running == 3:
                task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    assert (admission.stats().running, admission.stats().waiting) == (0, 0)


async def test_work_past_its_deadline_is_shed() -> None:
    """Late on arrival, or late while waiting: refused for good, counted, and gone from the queue."""
    work = Work(Admission(1, 5))
    with pytest.raises(DeadlineShed):
        await work.run("late", deadline_at=time.monotonic() - 1)
    first = asyncio.create_task(work.run("a"))
    await until(lambda: work.admission.stats().running == 1)
    with pytest.raises(DeadlineShed):
        await work.run("b", deadline_at=time.monotonic() + 0.05)
    assert work.admission.stats().shed == 2
    assert work.admission.stats().waiting == 0
    work.release.set()
    await first


async def test_a_lowered_limit_holds_from_the_next_permit_on() -> None:
    """Those at work finish, then fewer follow; one is always allowed."""
    work = Work(Admission(2, 9))
    tasks = [asyncio.create_task(work.run(str(at))) for at in range(4)]
    await until(lambda: work.admission.stats().running == 2)
    work.admission.lower_limit()
    work.admission.lower_limit()
    assert work.admission.stats().limit == 1
    work.most = 0
    work.release.set()
    await asyncio.gather(*tasks)
    assert work.most == 1
