"""Who waits for the engine, who is next, who comes too late, and whom a full queue refuses."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline_ver2.errors import StageError
from serving.workers.turns import Turns

_TOLERANCE_S = 1e-6  # clocks and means are sums of floats


@dataclass(slots=True, eq=False)
class Ticket:
    """One request. `decide` is called once, with None when it may begin or with why it may not."""

    client: str
    due_at: float
    decide: Callable[[StageError | None], None]
    number: int = 0
    asked_at: float = 0.0
    began_at: float = 0.0
    state: Literal["new", "waiting", "running", "gone"] = "new"

    @property
    def urgent(self) -> bool:
        """Whether it has a deadline."""
        return self.due_at < math.inf


class WaitingLine:
    """Urgent requests by their deadline, earliest first; the others first come first served.

    Clients take turns where that order leaves a choice: among requests without a deadline, each client's own being
    first come first served, and among equal deadlines. The client served longest ago is next.

    Every urgent one that goes earns those without a deadline `min_share` of a turn; with a whole turn earned, and no
    more than one can be, one of them goes first.
    """

    def __init__(self, min_share: float) -> None:
        self._min_share = min_share
        self._urgent: list[Ticket] = []
        self._patient: list[Ticket] = []
        self._earned = 0.0
        self._turns = Turns()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._patient)

    def add(self, ticket: Ticket) -> None:
        """Let a new one wait."""
        (self._urgent if ticket.urgent else self._patient).append(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Let one go that waits."""
        (self._urgent if ticket.urgent else self._patient).remove(ticket)

    def pop(self) -> Ticket:
        """Take out who is next."""
        if self._urgent and not (self._patient and _is_whole(self._earned)):
            ticket = self._by_urgency()[0]
            self._earned = self._earn(self._earned)
        else:
            ticket = min(self._patient, key=lambda waiting: (self._turns.last(waiting.client), waiting.number))
            self._earned = self._spend(self._earned)
        self.remove(ticket)
        self._turns.take(ticket.client)
        return ticket

    def too_late(self, free_at: Iterable[float], *, work_s: float, needed_s: float) -> list[Ticket]:
        """Those that cannot be done by their deadlines, if everybody takes their turn and all goes as expected.

        Where there is too much for one of them, another before it may give way as well, for then it can be done: it is
        the client that was served most of late, so that none is always last because its deadlines always are.

        Args:
            free_at: When each permit is free to be given to somebody who waits.
            work_s: How long a request holds its permit.
            needed_s: How long it may well hold it: what must be left before its own deadline.
        """
        permits = list(free_at)
        heapq.heapify(permits)
        patient, earned = len(self._patient), self._earned
        late: list[Ticket] = []
        kept: list[Ticket] = []
        for ticket in self._by_urgency():
            while patient and _is_whole(earned):
                heapq.heapreplace(permits, permits[0] + work_s)
                patient, earned = patient - 1, self._spend(earned)
            if permits[0] + needed_s > ticket.due_at + _TOLERANCE_S:
                kept.append(ticket)
                late.append(kept.pop(self._most_served(kept)))
            else:
                kept.append(ticket)
                heapq.heapreplace(permits, permits[0] + work_s)
                earned = self._earn(earned)
        return late

    def _most_served(self, tickets: Sequence[Ticket]) -> int:
        """The place of the last ticket of the client that has had the most turns of late, these included."""
        counts = Counter(ticket.client for ticket in tickets)
        shares = [self._turns.share(ticket.client) + counts[ticket.client] for ticket in tickets]
        return max(range(len(tickets)), key=lambda at: (shares[at], at))

    def first_due(self) -> float:
        """The earliest deadline; infinite if nobody has one."""
        return min(ticket.due_at for ticket in self._urgent) if self._urgent else math.inf

    def crowding_out(self, newcomer: Ticket) -> Ticket:
        """Whom a line that has just become too long by `newcomer` refuses.

        The newcomer, unless another client waits with more requests than the newcomer's client now does; then the
        last of those: the newest without a deadline, or if all have one, that with the latest.
        """
        waiting = [*self._urgent, *self._patient]
        counts = Counter(ticket.client for ticket in waiting)
        longest = max(counts, key=lambda client: counts[client])
        if counts[longest] <= counts[newcomer.client]:
            return newcomer
        return max((ticket for ticket in waiting if ticket.client == longest), key=lambda t: (t.due_at, t.number))

    def _by_urgency(self) -> list[Ticket]:
        """All urgent ones in the order in which they will go; clients alternate among equal deadlines."""
        nth: Counter[tuple[float, str]] = Counter()
        keyed = []
        for ticket in self._urgent:
            same = (ticket.due_at, ticket.client)
            keyed.append((ticket.due_at, nth[same], self._turns.last(ticket.client), ticket.number, ticket))
            nth[same] += 1
        return [ticket for *_, ticket in sorted(keyed, key=lambda row: row[:4])]

    def _earn(self, earned: float) -> float:
        return min(1.0, earned + self._min_share)

    def _spend(self, earned: float) -> float:
        return max(0.0, earned - (1 - self._min_share))


def _is_whole(earned: float) -> bool:
    return earned > 1 - 1e-9
