"""Order, shares, turns, lateness and who is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from serving.workers.waiting_line import Ticket, WaitingLine


class Line:
    """A line whose tickets have names: the client's, and a number."""

    def __init__(self, min_share: float = 0.1) -> None:
        self.line = WaitingLine(min_share)
        self.names: dict[Ticket, str] = {}

    def add(self, client: str, due_at: float = math.inf) -> Ticket:
        """Let one more wait."""
        ticket = Ticket(client, due_at, lambda _error: None, number=len(self.names))
        self.names[ticket] = f"{client}{len(self.names)}"
        self.line.add(ticket)
        return ticket

    def named(self, tickets: Sequence[Ticket]) -> list[str]:
        """Their names."""
        return [self.names[ticket] for ticket in tickets]

    def all(self) -> list[str]:
        """Take out everybody."""
        return self.named([self.line.pop() for _ in range(len(self.line))])

    def late(self, free_at: Sequence[float], work_s: float = 1.0, needed_s: float = 1.0) -> list[str]:
        """Who comes too late."""
        return self.named(self.line.too_late(free_at, work_s=work_s, needed_s=needed_s))


def test_the_earliest_deadline_is_first() -> None:
    """Whatever the order in which they came."""
    line = Line(0)
    for due_at in (5, 3, 9, 1):
        line.add("a", due_at)
    assert line.line.first_due() == 1
    assert line.all() == ["a3", "a1", "a0", "a2"]
    assert line.line.first_due() == math.inf


def test_without_deadlines_first_come_first_served() -> None:
    """After all that have one."""
    line = Line(0)
    for due_at in (math.inf, math.inf, 7, math.inf):
        line.add("a", due_at)
    assert line.all() == ["a2", "a0", "a1", "a3"]


def test_clients_take_turns() -> None:
    """Many of one do not delay few of another, and each client's own keep their order."""
    line = Line()
    for client in "aaaaabbc":
        line.add(client)
    assert line.all() == ["a0", "b5", "c7", "a1", "b6", "a2", "a3", "a4"]


def test_clients_take_turns_where_deadlines_are_equal() -> None:
    """And only there."""
    line = Line()
    for client in "aaab":
        line.add(client, 5)
    line.add("a", 4)
    assert line.late([0], 1, 3.0) == ["a1", "a2"]
    assert line.all() == ["a4", "b3", "a0", "a1", "a2"]


def test_work_without_deadlines_keeps_its_share() -> None:
    """Every tenth turn while both wait; a share of none is none."""
    for share, expected in ((0.1, [10, 20, 30]), (0.25, [4, 8, 12]), (0.0, [])):
        line = Line(share)
        for _ in range(3):
            line.add("file")
        for number in range(40):
            line.add("live", 1000 + number)
        turns = line.all()[:40]
        assert [at for at, name in enumerate(turns) if name.startswith("file")] == expected


def test_no_more_than_one_turn_is_earned() -> None:
    """However long there was nobody to take it."""
    line = Line(0.5)
    for number in range(20):
        line.add("live", number)
        line.line.pop()
    for _ in range(3):
        line.add("file")
    for number in range(4):
        line.add("live", 100 + number)
    assert line.all() == ["file20", "live23", "file21", "live24", "file22", "live25", "live26"]


def test_lateness_takes_all_turns_into_account() -> None:
    """Two permits, one second each: at 5 s the fifth and sixth cannot end by 7 s; nobody behind pays for them."""
    line = Line(0)
    for due_at in (7, 7, 7, 7, 7, 7, 8):
        line.add("a", due_at)
    assert line.late([5, 5]) == ["a4", "a5"]
    assert line.late([5, 6.5]) == ["a2", "a3", "a4", "a5"]
    assert len(line.line) == 7


def test_lateness_asks_for_what_the_work_may_need() -> None:
    """The work of others takes its mean, one's own may need more; just in time is in time."""
    line = Line(0)
    line.add("a", 3.5)
    line.add("a", 3.5)
    assert line.late([0], 1.0, 2.5) == []
    assert line.late([0], 1.0, 2.6) == ["a1"]
    assert line.late([1.01], 1.0, 2.5) == ["a0", "a1"]


def test_lateness_counts_the_turns_of_work_without_deadlines() -> None:
    """Here every second one."""
    line = Line(0.5)
    for _ in range(5):
        line.add("file")
    for _ in range(4):
        line.add("live", 3.0)
    assert line.late([0]) == ["live7", "live8"]


def test_who_is_refused_by_a_full_queue() -> None:
    """The newcomer, unless another client still waits with more; then the last of that one's."""
    line = Line()
    line.add("many", 3)
    for _ in range(3):
        line.add("many")
    newcomer = line.add("many")
    assert line.line.crowding_out(newcomer) is newcomer
    few = line.add("few")
    assert line.names[line.line.crowding_out(few)] == "many4"
    line.line.remove(newcomer)
    for _ in range(3):
        few = line.add("few")
    assert line.line.crowding_out(few) is few


def test_where_all_have_deadlines_the_latest_is_refused() -> None:
    """It would have been last."""
    line = Line()
    for due_at in (9, 12, 10):
        line.add("many", due_at)
    assert line.names[line.line.crowding_out(line.add("few"))] == "many1"


def test_a_client_that_has_gone_is_forgotten_in_the_end() -> None:
    """Names are made by clients: what is kept of them is bounded."""
    line = Line()
    for number in range(3000):
        line.add(f"client {number}")
        line.line.pop()
    assert len(line.line._turns._last) <= 1024


def test_the_client_served_most_gives_way() -> None:
    """Not always the one whose deadlines are last; no more give way than must, and what is kept can be done."""
    line = Line()
    for _ in range(3):
        line.add("a", 1)
        line.line.pop()
    for client, due_at in (("a", 10), ("b", 11), ("a", 12), ("c", 12.5)):
        line.add(client, due_at)
    assert line.late([8], 1, 1) == []
    assert line.late([9], 1, 1) == ["a5"]
    assert line.late([9.5], 1, 1) == ["a3"]
    assert line.late([10.5], 1, 1) == ["a3", "b4"]


def test_four_clients_whose_deadlines_come_in_turn_are_served_alike() -> None:
    """One permit, and half as much again is asked for as can be done: whoever comes last in each round is not last."""
    line, served = Line(0), Counter[str]()
    now, free_at = 0.0, 0.0
    for step in range(4000):
        now = step * 0.25
        line.add("abcd"[step % 4], now + 2)
        late = line.line.too_late([max(now, free_at)], work_s=0.375, needed_s=0.375)
        for ticket in late:
            line.line.remove(ticket)
        while free_at <= now and len(line.line):
            served[line.line.pop().client] += 1
            free_at = max(now - 0.25, free_at) + 0.375
    assert sum(served.values()) > 2600
    assert min(served.values()) > 0.97 * max(served.values())
