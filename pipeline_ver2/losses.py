"""What a live run let go of: frames, keyframes and slots, counted by reason."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

log = logging.getLogger(__name__)

Lost = Literal["frames", "keyframes", "slots"]

_TELL_EVERY_S = 1.0


class Losses:
    """Counts from any thread, and tells the log what is new, once a second at most."""

    def __init__(self, name: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._all: Counter[tuple[Lost, str]] = Counter()
        self._told: Counter[tuple[Lost, str]] = Counter()
        self._next_at = -float("inf")

    def add(self, kind: Lost, reason: str, number: int = 1) -> None:
        """So many were lost."""
        if number <= 0:
            return
        with self._lock:
            self._all[kind, reason] += number
            now = self._clock()
            if now < self._next_at:
                return
            self._next_at = now + _TELL_EVERY_S
            new = self._take_new()
        self._tell(new)

    def flush(self) -> None:
        """Tell what was not told yet."""
        with self._lock:
            new = self._take_new()
        self._tell(new)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """All of them, by kind and reason."""
        found: dict[str, dict[str, int]] = {}
        with self._lock:
            for (kind, reason), number in sorted(self._all.items()):
                found.setdefault(kind, {})[reason] = number
        return found

    def _take_new(self) -> Counter[tuple[Lost, str]]:
        new = self._all - self._told
        self._told = self._all.copy()
        return new

    def _tell(self, new: Counter[tuple[Lost, str]]) -> None:
        if new:
            told = ", ".join(f"{number} {kind} ({reason})" for (kind, reason), number in sorted(new.items()))
            log.warning("%slost: %s", f"{self._name}: " if self._name else "", told)
