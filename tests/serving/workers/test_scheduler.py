"""The scheduler on a real loop, and its decisions one by one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import pytest

from pipeline_ver2.errors import DeadlineShed, QueueFull, StageError
from serving.workers.limits import AdaptiveLimit, FixedLimit
from serving.workers.scheduler import Scheduler, SchedulerCore
from serving.workers.waiting_line import Ticket


class Work:
    """Requests that hold their permit until told to let go."""

    def __init__(self, limit: int, max_queue: int = 20) -> None:
        self.scheduler = Scheduler(FixedLimit(limit), max_queue)
        self.order: list[str] = []
        self.release = asyncio.Event()
        self.most = 0

    async def run(self, name: str, *, client: str = "", deadline_at: float | None = None) -> float:
        """Hold a permit; returns how long it was waited for."""
        async with self.scheduler.slot(client=client, deadline_at=deadline_at) as permit:
            self.order.append(name)
            self.most = max(self.most, self.scheduler.stats().running)
            await self.release.wait()
            return permit.queue_s

    async def started(self, *names: str) -> list[asyncio.Task[float]]:
        """Start some, one after another, until all of them run or wait."""
        tasks = []
        for name in names:
            tasks.append(asyncio.create_task(self.run(name)))
            await asyncio.sleep(0)
        return tasks

    def idle(self) -> bool:
        """Nobody runs, nobody waits."""
        stats = self.scheduler.stats()
        return (stats.running, stats.waiting) == (0, 0)


class Decided:
    """Tickets of a core, and what was decided on them."""

    def __init__(self, core: SchedulerCore) -> None:
        self.core = core
        self.decisions: dict[Ticket, StageError | None] = {}

    def ask(self, now: float, due_at: float = math.inf, client: str = "") -> Ticket:
        """A request comes."""
        ticket = Ticket(client, due_at, lambda error: self.decisions.update({ticket: error}))
        self.core.arrive(ticket, now)
        return ticket

    def served(self, now: float, seconds: float) -> None:
        """One was worked on for so long."""
        self.core.finish(self.ask(now), now + seconds, answered=True)

    def refusal(self, ticket: Ticket) -> StageError:
        """Why it was refused."""
        error = self.decisions[ticket]
        assert error is not None
        return error


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until it is so."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


async def test_a_free_permit_is_taken_at_once() -> None:
    """Nothing waits where there is room, and the permit comes back."""
    scheduler = Scheduler(FixedLimit(1), 1)
    async with scheduler.slot() as permit:
        assert permit.queue_s < 1
        assert scheduler.stats().running == 1
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.admitted, stats.limit) == (0, 0, 1, 1)


async def test_never_more_than_the_limit_and_first_come_first_served() -> None:
    """Twenty requests go through two at a time, in their order."""
    work = Work(2)
    tasks = await work.started(*(str(at) for at in range(20)))
    assert work.scheduler.stats().waiting == 18
    assert work.order == ["0", "1"]
    work.release.set()
    waits = await asyncio.gather(*tasks)
    assert work.order == [str(at) for at in range(20)]
    assert work.most == 2
    assert waits[19] > 0
    assert work.idle()


async def test_the_earliest_deadline_goes_first() -> None:
    """Before work without one, and before later deadlines that came earlier."""
    work = Work(1)
    tasks = await work.started("first", "file")
    now = time.monotonic()
    tasks += [asyncio.create_task(work.run(str(s), deadline_at=now + s)) for s in (900, 700, 800)]
    await until(lambda: work.scheduler.stats().waiting == 4)
    work.release.set()
    await asyncio.gather(*tasks)
    assert work.order == ["first", "700", "800", "900", "file"]


async def test_clients_take_turns() -> None:
    """A second client does not wait behind all of the first."""
    work = Work(1)
    tasks = [asyncio.create_task(work.run(name, client=name[0])) for name in ("a1", "a2", "a3", "a4", "b1", "b2")]
    await until(lambda: work.scheduler.stats().waiting == 5)
    work.release.set()
    await asyncio.gather(*tasks)
    assert work.order == ["a1", "b1", "a2", "b2", "a3", "a4"]


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    """One works, one waits, the third is told 429 with a time."""
    work = Work(1, 1)
    tasks = await work.started("a", "b")
    with pytest.raises(QueueFull, match=r"1 requests wait already \(stage2.max_queue\)$") as caught:
        await work.run("c")
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 0
    assert work.scheduler.stats().rejected == {"queue_full": 1, "displaced": 0}
    work.release.set()
    await asyncio.gather(*tasks)
    assert work.order == ["a", "b"]


async def test_one_that_waits_is_displaced_by_a_client_that_has_fewer() -> None:
    """And is told so."""
    work = Work(1, 2)
    first, second, third = await work.started("a", "b", "c")
    other = asyncio.create_task(work.run("d", client="other"))
    with pytest.raises(QueueFull, match="most of them this client's"):
        await third
    assert work.scheduler.stats().rejected == {"queue_full": 0, "displaced": 1}
    work.release.set()
    await asyncio.gather(first, second, other)
    assert sorted(work.order) == ["a", "b", "d"]


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    """Its place goes to the next, no permit is lost, and it is counted."""
    work = Work(1)
    first, second, third = await work.started("a", "b", "c")
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert (work.scheduler.stats().waiting, work.scheduler.stats().cancelled) == (1, 1)
    work.release.set()
    await asyncio.gather(first, third)
    assert work.order == ["a", "c"]


async def test_a_waiter_cancelled_as_its_turn_comes_passes_the_permit_on() -> None:
    """The moment between being called and taking the permit loses nothing."""
    work = Work(1)
    holder = work.scheduler.slot()
    await holder.__aenter__()
    second, third = await work.started("b", "c")
    await holder.__aexit__(None, None, None)  # calls the second, which has not run yet
    second.cancel()
    work.release.set()
    await asyncio.gather(second, third, return_exceptions=True)
    assert work.order == ["c"]
    assert work.idle()


async def test_a_waiter_cancelled_as_it_is_refused_is_just_gone() -> None:
    """Nothing is counted twice, nothing complains about an error nobody looked at."""
    work = Work(1, 1)
    first, second = await work.started("a", "b")
    holder = work.scheduler.slot(client="other")
    third = asyncio.create_task(holder.__aenter__())
    await asyncio.sleep(0)
    fourth = asyncio.create_task(work.run("d", client="yet another"))
    await asyncio.sleep(0)
    third.cancel()
    work.release.set()
    await asyncio.gather(first, second, third, fourth, return_exceptions=True)
    assert work.idle()


@pytest.mark.fault("O4")
async def test_permits_are_all_back_after_many_failures() -> None:
    """After 200 requests of which every fifth is cancelled and every seventh raises, the full limit is there."""
    scheduler = Scheduler(FixedLimit(3), 300)
    most = 0

    async def request(number: int) -> None:
        nonlocal most
        async with scheduler.slot(client=str(number % 3)):
            most = max(most, scheduler.stats().running)
            await asyncio.sleep(0)
            if number % 7 == 0:
                raise ValueError
            if number % 5 == 0:
                await asyncio.Event().wait()

    tasks = [asyncio.create_task(request(number)) for number in range(200)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        for number, task in enumerate(tasks):
            if number % 5 == 0 and scheduler.stats().running == 3:
                task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    assert (scheduler.stats().running, scheduler.stats().waiting) == (0, 0)
    async with scheduler.slot(), scheduler.slot(), scheduler.slot():
        assert scheduler.stats().running == 3


async def test_work_past_its_deadline_is_shed() -> None:
    """Late on arrival, or by the timer while waiting: refused for good, counted, and gone from the queue."""
    work = Work(1)
    with pytest.raises(DeadlineShed):
        await work.run("late", deadline_at=time.monotonic() - 1)
    (first,) = await work.started("a")
    with pytest.raises(DeadlineShed):
        await work.run("b", deadline_at=time.monotonic() + 0.05)
    assert work.scheduler.stats().shed == {"on_arrival": 1, "while_waiting": 1}
    assert work.scheduler.stats().waiting == 0
    work.release.set()
    await first


async def test_a_fallen_limit_holds_from_the_next_permit_on() -> None:
    """Those at work finish, then fewer follow; one is always allowed; one accident counts once."""
    work = Work(2)
    tasks = await work.started("0", "1", "2", "3")
    work.scheduler.out_of_memory()
    work.scheduler.out_of_memory()
    assert work.scheduler.stats().limit == 1
    work.most = 0
    work.release.set()
    await asyncio.gather(*tasks)
    assert work.most == 1


async def test_pressure_reaches_an_adaptive_limit() -> None:
    """Which falls, if it can."""
    scheduler = Scheduler(AdaptiveLimit(1, 4), 4)
    for _ in range(2 * 16):
        async with scheduler.slot():
            pass
    assert scheduler.stats().limit > 1
    scheduler.memory_pressure()
    assert scheduler.stats().limit == 1


def test_what_cannot_be_done_in_time_is_shed_when_it_comes() -> None:
    """Two seconds of work, one permit taken until 12 s: by 13.9 s is too soon, by 14 s is not."""
    decided = Decided(SchedulerCore(FixedLimit(1), 9, 0.1))
    decided.served(0, 2)
    decided.ask(10)
    hopeless, just, behind = (decided.ask(10.5, due_at) for due_at in (13.9, 14.0, 15.9))
    assert isinstance(decided.refusal(hopeless), DeadlineShed)
    assert isinstance(decided.refusal(behind), DeadlineShed)
    assert just not in decided.decisions
    assert decided.core.stats().shed == {"on_arrival": 2, "while_waiting": 0}
    assert decided.core.stats().service_s == 2


def test_one_that_is_overtaken_is_shed_at_once() -> None:
    """It could be met until someone with less time came."""
    decided = Decided(SchedulerCore(FixedLimit(1), 9, 0.1))
    decided.served(0, 2)
    decided.ask(10)
    overtaken = decided.ask(10, 15)
    assert overtaken not in decided.decisions
    decided.ask(10, 14.5)
    assert isinstance(decided.refusal(overtaken), DeadlineShed)
    assert decided.core.stats().shed == {"on_arrival": 0, "while_waiting": 1}


def test_one_that_waits_too_long_is_shed_before_its_deadline() -> None:
    """The work before it takes longer than it should: at the last moment to begin it is given up, not run late."""
    decided = Decided(SchedulerCore(FixedLimit(1), 9, 0.1))
    decided.served(0, 2)
    decided.ask(10)
    waiting = decided.ask(10, 15)
    assert decided.core.wake_at() == pytest.approx(13, abs=0.01)
    decided.core.wake(12.99)
    assert waiting not in decided.decisions
    decided.core.wake(decided.core.wake_at())
    assert isinstance(decided.refusal(waiting), DeadlineShed)
    assert decided.core.wake_at() == math.inf


def test_failures_tell_nothing_of_how_long_work_takes() -> None:
    """They are often quick, and time-outs are slow."""
    decided = Decided(SchedulerCore(FixedLimit(1), 9, 0.1))
    decided.core.finish(decided.ask(0), 60, answered=False)
    assert decided.core.stats().service_s is None


def test_an_engine_that_was_slow_is_tried_again() -> None:
    """After one slow answer nobody would be in time; once the engine has been idle for long, the best time counts."""
    decided = Decided(SchedulerCore(FixedLimit(1), 9, 0.1))
    decided.served(0, 2)
    decided.served(2, 12)
    assert isinstance(decided.refusal(decided.ask(15, 18)), DeadlineShed)
    assert decided.decisions[decided.ask(60, 63)] is None
    assert isinstance(decided.refusal(decided.ask(60, 63)), DeadlineShed)


def test_the_figures_of_waiting() -> None:
    """Of those that were admitted; unknown before the first."""
    decided = Decided(SchedulerCore(FixedLimit(1), 20, 0.1))
    assert decided.core.stats().wait_p50_s is None
    tickets = [decided.ask(0) for _ in range(10)]
    for second, ticket in enumerate(tickets, start=1):
        decided.core.finish(ticket, second, answered=True)
    stats = decided.core.stats()
    assert (stats.wait_p50_s, stats.wait_p90_s) == (5, 9)
    assert (stats.admitted, stats.running) == (10, 0)


def test_the_time_to_come_back_is_that_of_the_queue() -> None:
    """Two seconds of work, two permits, four waiting."""
    decided = Decided(SchedulerCore(FixedLimit(2), 4, 0.1))
    decided.served(0, 2)
    refused = [decided.ask(5) for _ in range(7)][-1]
    assert decided.refusal(refused).retry_after_s == pytest.approx(5)
