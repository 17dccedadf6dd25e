"""The real-time scheduler: which request the engine gets next, and which it never gets.

`SchedulerCore` decides; it is plain code to which the time is told, so that an hour can be simulated in a second.
`Scheduler` puts it on a clock and an event loop. Neither knows HTTP or models.

- At most `limit` requests are at work, at most `max_queue` wait.
- Order: see `WaitingLine`. The earliest deadline is first, work without one keeps a share, clients take turns.
- A request that cannot be done by its deadline is shed: when it comes, or while it waits, as soon as that is seen.
  None begins late. Sheds are judged by the expected times of all that goes before it. No more are shed for fairness
  than must be, but which client has to give way is whoever was served most of late.
- A full queue refuses the newcomer, or displaces the last request of the client that waits with the most.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from pipeline_ver2.errors import DeadlineShed, QueueFull, StageError
from serving.workers.limits import Limit
from serving.workers.service_time import ServiceTime
from serving.workers.waiting_line import Ticket, WaitingLine

ShedReason = Literal["on_arrival", "while_waiting"]
RejectReason = Literal["queue_full", "displaced"]

_WAITS_REMEMBERED = 256
_LOOK_AGAIN_S = 1e-3  # after the last moment to begin: no timer may come too early to see it
_IDLE_S = 10.0
_UNKNOWN_S = 1.0
_ACCIDENT_S = 1.0


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """What the scheduler does now, and what became of all requests.

    `cancelled` left while they waited. Waits are those of the last 256 that were admitted, None before the first;
    `service_s` is the mean time of work, None while unknown.
    """

    limit: int
    running: int
    waiting: int
    admitted: int
    cancelled: int
    shed: Mapping[ShedReason, int]
    rejected: Mapping[RejectReason, int]
    wait_p50_s: float | None
    wait_p90_s: float | None
    service_s: float | None


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to work; `queue_s` is how long it was waited for."""

    queue_s: float


class SchedulerCore:
    """The decisions. Every call brings the time; each ticket's `decide` is called before the call returns.

    `decide` must not call back.
    """

    def __init__(self, limit: Limit, max_queue: int, min_share: float) -> None:
        self._limit = limit
        self._max_queue = max_queue
        self._line = WaitingLine(min_share)
        self._running: set[Ticket] = set()
        self._service = ServiceTime()
        self._waits: deque[float] = deque(maxlen=_WAITS_REMEMBERED)
        self._arrived = self._admitted = self._cancelled = 0
        self._shed: dict[ShedReason, int] = {"on_arrival": 0, "while_waiting": 0}
        self._rejected: dict[RejectReason, int] = {"queue_full": 0, "displaced": 0}
        self._idle_since = math.inf
        self._next_accident_at = -math.inf

    def arrive(self, ticket: Ticket, now: float) -> None:
        """A request asks for a permit; refused are it, or others for its sake."""
        self._arrived += 1
        ticket.number, ticket.asked_at, ticket.state = self._arrived, now, "waiting"
        self._line.add(ticket)
        self._decide(now, ticket)
        if len(self._line) > self._max_queue:
            self._reject(self._line.crowding_out(ticket), ticket)

    def finish(self, ticket: Ticket, now: float, *, answered: bool) -> None:
        """The work of a permit has ended. Only answers tell how long work takes."""
        self._running.remove(ticket)
        ticket.state = "gone"
        if answered:
            self._service.add(now - ticket.began_at)
            self._limit.answered(now - ticket.began_at, now)
        if not self._running:
            self._idle_since = now
        self._decide(now)

    def leave(self, ticket: Ticket, now: float) -> None:
        """The caller no longer wants it, whether it waits, or may begin but has not."""
        if ticket.state == "running":
            self.finish(ticket, now, answered=False)
        elif ticket.state == "waiting":
            self._line.remove(ticket)
            ticket.state = "gone"
            self._cancelled += 1

    def wake(self, now: float) -> None:
        """Look at who waits; to be called at `wake_at`."""
        self._decide(now)

    def wake_at(self) -> float:
        """When someone will come too late if nothing happens before; infinite if nobody can."""
        return self._line.first_due() - self._service.needed_s + _LOOK_AGAIN_S

    def out_of_memory(self, now: float) -> None:
        """The engine ran out of memory. What is told within a second is the same accident."""
        if now >= self._next_accident_at:
            self._next_accident_at = now + _ACCIDENT_S
            self._limit.out_of_memory(now)
            self._decide(now)

    def memory_pressure(self, now: float) -> None:
        """The engine's memory is nearly full."""
        self._limit.under_pressure(now)
        self._decide(now)

    def stats(self) -> SchedulerStats:
        """The present figures."""
        waits = sorted(self._waits)
        p50, p90 = (waits[int(share * len(waits))] if waits else None for share in (0.5, 0.9))
        return SchedulerStats(
            limit=self._limit.value,
            running=len(self._running),
            waiting=len(self._line),
            admitted=self._admitted,
            cancelled=self._cancelled,
            shed=dict(self._shed),
            rejected=dict(self._rejected),
            wait_p50_s=p50,
            wait_p90_s=p90,
            service_s=self._service.mean_s or None,
        )

    def _decide(self, now: float, newcomer: Ticket | None = None) -> None:
        """Shed who comes too late, then give out the permits that are free."""
        if self._line.first_due() < math.inf:
            self._shed_late(now, newcomer)
        while len(self._running) < self._limit.value and len(self._line):
            self._admit(self._line.pop(), now)

    def _shed_late(self, now: float, newcomer: Ticket | None) -> None:
        needed_s = self._needed_s(now)
        for ticket in self._line.too_late(self._free_at(now), work_s=self._service.mean_s, needed_s=needed_s):
            self._shed["on_arrival" if ticket is newcomer else "while_waiting"] += 1
            said = f"the deadline is in {ticket.due_at - now:.2f} s, too soon for {needed_s:.2f} s of work in its turn"
            self._refuse(ticket, DeadlineShed(said))

    def _free_at(self, now: float) -> list[float]:
        """When each permit is free; what runs above a limit that fell frees none."""
        ends = sorted(max(now, ticket.began_at + self._service.mean_s) for ticket in self._running)
        free = [now] * (self._limit.value - len(ends))
        return free + ends[max(0, len(ends) - self._limit.value) :]

    def _needed_s(self, now: float) -> float:
        """An engine that has long had nothing to do may be quicker than when it was last seen.

        Without this, one slow spell could have everybody shed for ever, with no answer to show that it is over.
        """
        idle = not self._running and now - self._idle_since > max(_IDLE_S, 2 * self._service.mean_s)
        return self._service.least_s if idle else self._service.needed_s

    def _admit(self, ticket: Ticket, now: float) -> None:
        ticket.began_at, ticket.state = now, "running"
        self._running.add(ticket)
        self._admitted += 1
        self._waits.append(now - ticket.asked_at)
        self._limit.began(len(self._running))
        ticket.decide(None)

    def _reject(self, ticket: Ticket, newcomer: Ticket) -> None:
        self._rejected["queue_full" if ticket is newcomer else "displaced"] += 1
        wait_s = (self._service.mean_s or _UNKNOWN_S) * len(self._line) / self._limit.value
        said = f"{self._max_queue} requests wait already (stage2.max_queue)"
        if ticket is not newcomer:
            said += ", most of them this client's"
        self._refuse(ticket, QueueFull(said, retry_after_s=wait_s))

    def _refuse(self, ticket: Ticket, error: StageError) -> None:
        self._line.remove(ticket)
        ticket.state = "gone"
        ticket.decide(error)


class Scheduler:
    """The core on a clock: `slot` waits for a permit and holds it."""

    def __init__(
        self, limit: Limit, max_queue: int, *, min_share: float = 0.1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._core = SchedulerCore(limit, max_queue, min_share)
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def slot(self, *, client: str = "", deadline_at: float | None = None) -> AsyncIterator[Permit]:
        """Wait for a permit, hold it for the body of the `async with`.

        Args:
            client: Who asks; clients take turns.
            deadline_at: When the answer must be there, on the scheduler's clock; None if there is no hurry.

        Raises:
            QueueFull: Too many wait, now or once a client that had fewer waiting came.
            DeadlineShed: The answer would come too late.
        """
        turn: asyncio.Future[StageError | None] = asyncio.get_running_loop().create_future()
        due_at = math.inf if deadline_at is None else deadline_at
        ticket = Ticket(client, due_at, lambda error: None if turn.done() else turn.set_result(error))
        self._core.arrive(ticket, self._clock())
        self._set_timer()
        try:
            refused = await turn
        except BaseException:
            self._core.leave(ticket, self._clock())
            self._set_timer()
            raise
        if refused is not None:
            raise refused
        async with self._held(ticket):
            yield Permit(ticket.began_at - ticket.asked_at)

    def out_of_memory(self) -> None:
        """The engine ran out of memory: the limit falls."""
        self._core.out_of_memory(self._clock())
        self._set_timer()

    def memory_pressure(self) -> None:
        """The engine's memory is nearly full: an adaptive limit falls."""
        self._core.memory_pressure(self._clock())
        self._set_timer()

    def stats(self) -> SchedulerStats:
        """The present figures."""
        return self._core.stats()

    @asynccontextmanager
    async def _held(self, ticket: Ticket) -> AsyncIterator[None]:
        answered = False
        try:
            yield
            answered = True
        finally:
            self._core.finish(ticket, self._clock(), answered=answered)
            self._set_timer()

    def _set_timer(self) -> None:
        """Have a look when the next of those that wait would come too late."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self._core.wake_at()
        if wake_at < math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_at - self._clock()), self._wake)

    def _wake(self) -> None:
        self._core.wake(self._clock())
        self._set_timer()
