"""Hours of the scheduler in seconds: its core, an engine that is a formula, and clients, on a clock of events."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipeline_ver2.errors import QueueFull, StageError
from serving.workers.scheduler import SchedulerCore
from serving.workers.waiting_line import Ticket

_AFTER_FAILURE_S = 2.0

Outcome = Literal["answered", "failed", "shed", "rejected", "cancelled"]
Latency = Callable[[int], float | None]
"""Seconds a request takes that begins as one of so many at work; None = it runs out of memory."""


@dataclass(slots=True, eq=False)
class Request:
    """One request and what became of it; seconds from the start of the simulation.

    `ended_at` is when it was answered, had failed, was refused or given up.
    """

    client: str
    asked_at: float
    due_at: float
    ticket: Ticket | None = None
    began_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    retry_after_s: float | None = None

    @property
    def late(self) -> bool:
        """Answered after its deadline; floats are forgiven a microsecond."""
        return self.outcome == "answered" and (self.ended_at or 0.0) > self.due_at + 1e-6

    @property
    def latency_s(self) -> float:
        """How long it was at work; NaN if it never was or still is."""
        return math.nan if self.ended_at is None or self.began_at is None else self.ended_at - self.began_at


class Simulation:
    """Runs events in their order; what a scheduler decides becomes further events."""

    def __init__(self, core: SchedulerCore, latency: Latency) -> None:
        self.now = 0.0
        self.core = core
        self.requests: list[Request] = []
        self.running = self.most_running = self.out_of_memory = 0
        self._latency = latency
        self._events: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._scheduled = 0

    def at(self, when: float, action: Callable[[], None], *, first: bool = False) -> None:
        """Do something then; events of one time in the order in which they were asked for, but for a `first` one."""
        self._scheduled += 1
        heapq.heappush(self._events, (when, not first, self._scheduled, action))

    def send(
        self, client: str, deadline_s: float = math.inf, ended: Callable[[Request], None] | None = None
    ) -> Request:
        """A request comes now.

        Args:
            client: Whose it is.
            deadline_s: Seconds from now to its deadline.
            ended: Called once it is over, however it ended.
        """
        request = Request(client, self.now, self.now + deadline_s)
        self.requests.append(request)
        over = ended or (lambda _request: None)
        request.ticket = Ticket(client, request.due_at, lambda error: self._decided(request, error, over))
        self.core.arrive(request.ticket, self.now)
        return request

    def cancel(self, request: Request) -> None:
        """The caller gives it up, if it is not over."""
        if request.ticket is not None and request.outcome is None:
            self.running -= request.began_at is not None
            request.outcome, request.ended_at = "cancelled", self.now
            self.core.leave(request.ticket, self.now)

    def run(self, until: float) -> None:
        """Let time pass."""
        while (when := min(self._events[0][0] if self._events else math.inf, self.core.wake_at())) <= until:
            self.now = max(self.now, when)
            if self._events and self._events[0][0] <= when:
                heapq.heappop(self._events)[-1]()
            else:
                self.core.wake(self.now)
        self.now = until

    def _decided(self, request: Request, error: StageError | None, ended: Callable[[Request], None]) -> None:
        if error is not None:
            request.outcome = "rejected" if isinstance(error, QueueFull) else "shed"
            request.retry_after_s, request.ended_at = error.retry_after_s, self.now
            self.at(self.now, lambda: ended(request))
            return
        request.began_at = self.now
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        latency_s = self._latency(self.running)
        ran_out = latency_s is None
        self.at(self.now + (latency_s or 0.0), lambda: self._end(request, ended, ran_out=ran_out), first=ran_out)

    def _end(self, request: Request, ended: Callable[[Request], None], *, ran_out: bool) -> None:
        if request.outcome is not None or request.ticket is None:
            return
        request.ended_at = self.now
        request.outcome = "failed" if ran_out else "answered"
        if ran_out:
            self.out_of_memory += 1
            self.core.out_of_memory(self.now)
        self.running -= 1
        self.core.finish(request.ticket, self.now, answered=not ran_out)
        ended(request)


def keep_sending(simulation: Simulation, client: str, window: int) -> None:
    """A client that always has `window` requests outstanding.

    A refused one it sends again when told to, one that failed after two seconds.
    """

    def again(request: Request) -> None:
        wait_s = _AFTER_FAILURE_S if request.outcome == "failed" else request.retry_after_s or 0.0
        simulation.at(simulation.now + wait_s, send)

    def send() -> None:
        simulation.send(client, ended=again)

    for _ in range(window):
        simulation.at(simulation.now, send)


def send_every(simulation: Simulation, client: str, interval_s: float, deadline_s: float) -> None:
    """A live client: a request every `interval_s`, with so long to its deadline, whatever becomes of the others."""

    def send() -> None:
        simulation.send(client, deadline_s)
        simulation.at(simulation.now + interval_s, send)

    simulation.at(simulation.now, send)
