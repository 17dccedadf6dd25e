"""What holds of the scheduler whatever comes: random requests on a simulated clock."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from serving.bench.simulation import Latency, Request, Simulation, keep_sending, send_every
from serving.workers.limits import AdaptiveLimit, FixedLimit
from serving.workers.scheduler import SchedulerCore

SERVICE_S = 1.0
MOMENT_S = 1e-6
AFTER_ALL_S = 10_000.0

# Failures are not made smaller: on a slow machine that takes minutes.
few_examples = settings(max_examples=50, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))


@dataclass(frozen=True)
class Plan:
    """One request to come: seconds after the one before, whose, its deadline, when it is given up."""

    gap_s: float
    client: str
    deadline_s: float
    cancelled_after_s: float | None


def plans(*, clients: str = "abc", cancels: bool = True) -> st.SearchStrategy[list[Plan]]:
    """Up to 40 requests, many of them close together."""
    seconds = st.integers(0, 60).map(lambda tenths: tenths / 10)
    return st.lists(
        st.builds(
            Plan,
            gap_s=st.integers(0, 12).map(lambda tenths: tenths / 10),
            client=st.sampled_from(clients),
            deadline_s=st.just(math.inf) | seconds,
            cancelled_after_s=st.none() | seconds if cancels else st.none(),
        ),
        min_size=1,
        max_size=40,
    )


def steady(_running: int) -> float:
    """An engine that always takes as long."""
    return SERVICE_S


def moody(seed: int) -> Latency:
    """An engine whose times vary a lot and that now and then fails."""
    chance = random.Random(seed)
    return lambda _running: None if chance.random() < 0.2 else chance.uniform(0.1, 3)


def run(core: SchedulerCore, planned: Sequence[Plan], latency: Latency = steady, *, max_queue: int = 100) -> Simulation:
    """Warm up with one answer, so that the time of work is known, then let them come, until all is over."""
    simulation = Simulation(core, latency)
    simulation.send("warm-up")
    when = 5.0

    def come(plan: Plan) -> None:
        request = simulation.send(plan.client, plan.deadline_s)
        assert core.stats().waiting <= max_queue
        if plan.cancelled_after_s is not None:
            simulation.at(simulation.now + plan.cancelled_after_s, lambda: simulation.cancel(request))

    for plan in planned:
        when += plan.gap_s
        simulation.at(when, lambda plan=plan: come(plan))  # type: ignore[misc]
    simulation.run(AFTER_ALL_S)
    return simulation


def waited_until(request: Request) -> float:
    """When it left the queue, one way or the other."""
    times = (request.began_at, request.ended_at)
    return min(time for time in times if time is not None)


def began_between(simulation: Simulation, start: float, end: float) -> list[Request]:
    """Those that began within, the ends excluded."""
    began = (request for request in simulation.requests if request.began_at is not None)
    return [request for request in began if start + MOMENT_S < (request.began_at or 0) < end - MOMENT_S]


@few_examples
@given(planned=plans(), limit=st.integers(1, 4), max_queue=st.integers(1, 10), seed=st.integers(0, 9))
def test_permits_are_bounded_and_all_come_back(planned: list[Plan], limit: int, max_queue: int, seed: int) -> None:
    """Any mix of answers, failures, cancels, sheds and refusals: never over the limit, and in the end all are free."""
    core = SchedulerCore(FixedLimit(limit), max_queue, 0.1)
    simulation = run(core, planned, moody(seed), max_queue=max_queue)
    assert simulation.most_running <= limit
    assert None not in {request.outcome for request in simulation.requests}
    before, limit_now = core.stats(), core.stats().limit
    assert (before.running, before.waiting) == (0, 0)
    counts = (before.cancelled, *before.shed.values(), *before.rejected.values())
    assert before.admitted + sum(counts) == len(planned) + 1
    for _ in range(limit_now + 1):
        simulation.send("after all")
    assert (core.stats().running, core.stats().waiting) == (limit_now, 1)


@few_examples
@given(planned=plans(), most=st.integers(1, 6), seed=st.integers(0, 9))
def test_an_adaptive_limit_is_kept_as_well(planned: list[Plan], most: int, seed: int) -> None:
    """Never more than its upper end at work, and never less than one allowed."""
    core = SchedulerCore(AdaptiveLimit(1, most), 10, 0.1)
    simulation = run(core, planned * 5, moody(seed), max_queue=10)
    assert simulation.most_running <= most
    assert 1 <= core.stats().limit <= most
    assert (core.stats().running, core.stats().waiting) == (0, 0)


@few_examples
@given(planned=plans(), limit=st.integers(1, 3), share=st.sampled_from([0, 0.1, 0.5]), seed=st.integers(0, 9))
def test_the_earliest_deadline_of_those_that_wait_goes_first(
    planned: list[Plan], limit: int, share: float, seed: int
) -> None:
    """Whatever clients, shares and times of work do."""
    simulation = run(SchedulerCore(FixedLimit(limit), 100, share), planned, moody(seed))
    urgent = [request for request in simulation.requests if request.due_at < math.inf]
    for chosen in urgent:
        at = chosen.began_at
        if at is not None:
            waiting = [r for r in urgent if r.asked_at < at - MOMENT_S and waited_until(r) > at + MOMENT_S]
            assert chosen.due_at <= min((request.due_at for request in waiting), default=math.inf)


@settings(few_examples, max_examples=15)
@given(
    limit=st.integers(1, 3),
    share=st.sampled_from([0.1, 0.25, 0.5]),
    load=st.floats(1.5, 4),
    deadline_s=st.floats(2.5, 20),
    more=st.integers(1, 3),
)
def test_work_without_a_deadline_does_not_starve(
    limit: int, share: float, load: float, deadline_s: float, more: int
) -> None:
    """However much there is with one: it begins after at most so many as its share allows, and gets no more either."""
    simulation = Simulation(SchedulerCore(FixedLimit(limit), 100, share), steady)
    send_every(simulation, "live", SERVICE_S / limit / load, deadline_s)
    keep_sending(simulation, "file", limit + more)
    simulation.run(100)
    began = sorted((r for r in simulation.requests if r.began_at is not None), key=lambda r: r.began_at or 0)
    patient = [at for at, request in enumerate(began) if request.due_at == math.inf and (request.began_at or 0) > 5]
    assert len(patient) > 5
    gaps = [later - sooner for sooner, later in itertools.pairwise(patient)]
    # One more where no deadline pressed for a moment; those that begin in the same moment have no order.
    assert max(gaps) <= 1 / share + 1 + 2 * (limit - 1)
    assert sum(gaps) / len(gaps) == pytest.approx(1 / share, rel=0.15)


@few_examples
@given(planned=plans(cancels=False), limit=st.integers(1, 3))
def test_only_what_could_not_be_met_is_shed(planned: list[Plan], limit: int) -> None:
    """Up to its last moment to begin, all permits were taken by work that was to go first; and no answer is late."""
    simulation = run(SchedulerCore(FixedLimit(limit), 1000, 0), planned)
    assert not any(request.late for request in simulation.requests)
    assert {request.outcome for request in simulation.requests} <= {"answered", "shed"}
    for shed in (request for request in simulation.requests if request.outcome == "shed"):
        last_moment = shed.due_at - SERVICE_S
        before = began_between(simulation, shed.asked_at, last_moment)
        assert all(request.due_at <= shed.due_at for request in before)
        moments = [shed.asked_at, *(request.ended_at or 0 for request in simulation.requests)]
        for moment in moments:
            if shed.asked_at <= moment < last_moment - MOMENT_S:
                busy = sum(_runs_at(request, moment + MOMENT_S) for request in simulation.requests)
                assert busy == limit


def _runs_at(request: Request, moment: float) -> bool:
    return request.began_at is not None and request.began_at <= moment < (request.ended_at or 0)


@settings(few_examples, max_examples=12)
@given(
    limit=st.integers(1, 4),
    max_queue=st.integers(20, 64),
    seconds=st.floats(0, 20),
    deadline_at=st.sampled_from([math.inf, 5_000.0]),
)
def test_ten_do_not_wait_behind_a_thousand(limit: int, max_queue: int, seconds: float, deadline_at: float) -> None:
    """They take turns with the thousand, though those had filled the queue; without deadlines or with equal ones."""
    simulation = Simulation(SchedulerCore(FixedLimit(limit), max_queue, 0.1), steady)

    def send(client: str, count: int) -> None:
        for _ in range(count):
            simulation.send(client, deadline_at - simulation.now)

    simulation.at(0, lambda: send("many", 1000))
    simulation.at(seconds, lambda: send("few", 10))
    simulation.run(AFTER_ALL_S)
    few = [request for request in simulation.requests if request.client == "few"]
    assert {request.outcome for request in few} == {"answered"}
    ended = max(request.ended_at or 0 for request in few)
    # Those at work end; then every second one is one of the ten.
    assert ended - seconds <= SERVICE_S * (1 + math.ceil(20 / limit)) + MOMENT_S
