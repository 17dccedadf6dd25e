"""Turns of clients that wait."""

from __future__ import annotations

from serving.workers import turns
from serving.workers.turns import Turns


def order(of: Turns, waiting: str) -> str:
    """Requests, named by their clients and numbered as they came, in the order in which they go."""
    named = [f"{client}{at}" for at, client in enumerate(waiting)]
    return " ".join(of.order(named, lambda each: each[0]))


def test_clients_alternate() -> None:
    """Nobody, one, many; each one's own stay in order."""
    assert order(Turns(), "") == ""
    assert order(Turns(), "aaa") == "a0 a1 a2"
    assert order(Turns(), "aaabcb") == "a0 b3 c4 a1 b5 a2"


def test_who_was_served_longest_ago_is_first() -> None:
    """And whoever was never served before that."""
    served = Turns()
    for client in "abca":
        served.take(client)
    assert order(served, "abcd") == "d3 b1 c2 a0"


def test_memory_is_bounded() -> None:
    """The client served longest ago is forgotten first, as if it were new."""
    served = Turns()
    for client in range(turns._CLIENTS_REMEMBERED + 1):
        served.take(str(client))
    assert (served.last("0"), served.last("1")) == (0, 2)


def test_shares_are_those_of_the_last_turns() -> None:
    """What was long ago no longer counts, and nothing of it is kept."""
    served = Turns()
    for _ in range(turns._TURNS_REMEMBERED):
        served.take("old")
    for number in range(turns._TURNS_REMEMBERED):
        served.take("ab"[number % 2])
    assert (served.share("old"), served.share("a"), served.share("b")) == (0, 64, 64)
