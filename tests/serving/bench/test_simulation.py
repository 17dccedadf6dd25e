"""The clock of events, and what goes on in it."""

from __future__ import annotations

import math

from serving.bench.simulation import Simulation, keep_sending, send_every
from serving.workers.limits import FixedLimit
from serving.workers.scheduler import SchedulerCore


def simulation(limit: int = 1, seconds: float | None = 2.0, max_queue: int = 9) -> Simulation:
    """An engine that always takes as long, or always runs out of memory."""
    return Simulation(SchedulerCore(FixedLimit(limit), max_queue, 0.1), lambda _running: seconds)


def test_events_happen_in_their_order() -> None:
    """By time, then as asked for; time goes on to where it was let run to, and no further."""
    happened: list[tuple[str, float]] = []
    simulated = simulation()
    for name, when in (("c", 3.0), ("a", 1.0), ("b", 1.0), ("d", 9.0)):
        simulated.at(when, lambda name=name: happened.append((name, simulated.now)))  # type: ignore[misc]
    simulated.run(5)
    assert happened == [("a", 1.0), ("b", 1.0), ("c", 3.0)]
    assert simulated.now == 5


def test_requests_are_worked_on_one_after_another() -> None:
    """Each has its times and its outcome; nothing at all is no matter."""
    simulated = simulation()
    simulated.run(1)
    requests = [simulated.send("a") for _ in range(3)]
    simulated.run(6)
    assert [(r.began_at, r.ended_at, r.outcome) for r in requests[:2]] == [(1, 3, "answered"), (3, 5, "answered")]
    assert requests[0].latency_s == 2
    assert (requests[2].began_at, requests[2].outcome) == (5, None)
    assert math.isnan(requests[2].latency_s)
    assert simulated.most_running == 1


def test_a_deadline_that_cannot_be_met_wakes_the_scheduler() -> None:
    """The request is shed between two events; one that was answered after its deadline was late."""
    simulated = simulation()
    first = simulated.send("a", deadline_s=1)
    second = simulated.send("a", deadline_s=1.5)
    simulated.run(9)
    assert first.late
    assert (second.outcome, second.late) == ("shed", False)
    assert 1.5 <= (second.ended_at or 0) < 1.6


def test_a_cancelled_request_is_over() -> None:
    """At work or waiting; its permit goes to the next, and it stays cancelled."""
    simulated = simulation()
    first, second, third = (simulated.send("a") for _ in range(3))
    simulated.run(1)
    simulated.cancel(second)
    simulated.cancel(first)
    simulated.run(9)
    assert [request.outcome for request in (first, second, third)] == ["cancelled", "cancelled", "answered"]
    assert (third.began_at, simulated.running) == (1, 0)
    simulated.cancel(third)
    assert third.outcome == "answered"


def test_running_out_of_memory_fails_the_request_and_lowers_the_limit() -> None:
    """Of two at work one is left."""
    simulated = simulation(limit=2, seconds=None)
    request = simulated.send("a")
    simulated.run(1)
    assert (request.outcome, simulated.out_of_memory, simulated.core.stats().limit) == ("failed", 1, 1)


def test_a_client_keeps_its_window() -> None:
    """Two outstanding at all times, and what was refused comes again when it was told to."""
    simulated = simulation(max_queue=1)
    keep_sending(simulated, "a", 3)
    simulated.run(21)
    outcomes = [request.outcome for request in simulated.requests]
    assert outcomes.count("answered") == 10
    assert "rejected" in outcomes
    assert outcomes.count(None) == 2


def test_a_client_whose_request_failed_comes_back_later() -> None:
    """Else it would fail for ever in the same moment."""
    simulated = simulation(seconds=None)
    keep_sending(simulated, "a", 2)
    simulated.run(5)
    assert sorted(request.asked_at for request in simulated.requests) == [0, 0, 2, 2, 4, 4]


def test_a_live_client_does_not_wait() -> None:
    """Its requests come in their interval, answered or not."""
    simulated = simulation()
    send_every(simulated, "live", 1.0, 3.0)
    simulated.run(9.5)
    assert [request.asked_at for request in simulated.requests] == list(range(10))
    assert {request.outcome for request in simulated.requests} == {"answered", "shed", None}
