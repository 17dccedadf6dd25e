"""Whose turn it is: clients that wait take turns, whoever was served longest ago first."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

_CLIENTS_REMEMBERED = 1024
_TURNS_REMEMBERED = 128


class Turns:
    """Remembers when clients had their last turns."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, int] = OrderedDict()
        self._turns = 0
        self._recent: deque[str] = deque()
        self._shares: Counter[str] = Counter()

    def share(self, client: str) -> int:
        """How many of the last turns were a client's."""
        return self._shares[client]

    def last(self, client: str) -> int:
        """The number of a client's last turn; 0 before its first."""
        return self._last.get(client, 0)

    def take(self, client: str) -> None:
        """A client has its turn now."""
        self._turns += 1
        self._last[client] = self._turns
        self._last.move_to_end(client)
        if len(self._last) > _CLIENTS_REMEMBERED:
            self._last.popitem(last=False)
        self._recent.append(client)
        self._shares[client] += 1
        if len(self._recent) > _TURNS_REMEMBERED:
            oldest = self._recent.popleft()
            self._shares[oldest] -= 1
            if not self._shares[oldest]:
                del self._shares[oldest]

    def order(self, waiting: Sequence[T], client_of: Callable[[T], str]) -> list[T]:
        """What waits, first come first served within each client, clients alternating."""
        nth: Counter[str] = Counter()
        keyed = []
        for at, each in enumerate(waiting):
            client = client_of(each)
            keyed.append((nth[client], self.last(client), at))
            nth[client] += 1
        return [waiting[at] for *_, at in sorted(keyed)]
