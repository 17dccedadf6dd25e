"""How many requests an engine works on at once: a fixed number, or one that follows the latency it sees.

The adaptive limit is TCP Vegas (Brakmo, O'Malley and Peterson, 1994), which Netflix's concurrency-limits uses for
requests (`VegasLimit`, fed by windows of samples): an engine with room answers in its floor time however many it has;
what an answer takes beyond that it spent in a queue inside the engine. The limit rises by one while that part is small
and falls to what the engine really works on at once when it is large.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod

from pipeline_ver2.config import LimitRange

# Shares of the latency: above the first the value does not rise, above the second twice running or the third it falls.
_SMALL_QUEUE, _LARGE_QUEUE, _OBVIOUS_QUEUE = 0.1, 0.15, 0.3
_LEAST_SAMPLES = 16
_TRIMMED = 1 / 8  # of a window, at either end: one stray latency decides nothing
_PATIENCE = 10  # windows without a rise after a cut
_FLOOR_EVERY = 60  # windows
_OOM_REST_S, _LONGEST_OOM_REST_S = 3600.0, 86_400.0


class Limit(ABC):
    """`value` is how many may be at work now. What runs above a value that fell is left to finish."""

    value: int

    @abstractmethod
    def out_of_memory(self, now: float) -> None:
        """The engine ran out of memory: work on fewer from now on, never on none."""

    def under_pressure(self, now: float) -> None:  # noqa: B027 - a fixed limit was chosen knowing the memory
        """The engine's memory is nearly full: it begins to throw work away to go on."""

    def began(self, running: int) -> None:  # noqa: B027 - a fixed limit learns nothing
        """One more is at work; with it, `running` are."""

    def answered(self, latency_s: float, now: float) -> None:  # noqa: B027 - as above
        """One has been answered, `latency_s` after it began."""


class FixedLimit(Limit):
    """A number that only an engine out of memory lowers, for good."""

    def __init__(self, value: int) -> None:
        self.value = value

    def out_of_memory(self, now: float) -> None:
        """One fewer."""
        self.value = max(1, self.value - 1)


class AdaptiveLimit(Limit):
    """Starts at `minimum` and moves up to `maximum` with what the engine bears.

    The floor is measured at `minimum`, and every 60 windows at half the value, so that it can rise too; in between it
    only follows what is lower. A level at which memory ran out is not tried again for an hour, and twice as long each
    time it happens again.
    """

    def __init__(self, minimum: int, maximum: int) -> None:
        self.value = minimum
        self._minimum, self._maximum = minimum, maximum
        self._floor_s = math.inf
        self._window: list[float] = []
        self._windows = 0
        self._changed_at = -math.inf
        self._most_running = 0
        self._patience = 0
        self._suspect = False
        self._value_after_floor: int | None = None
        self._pressure_counts = True
        self._ceiling, self._ceiling_until, self._oom_rest_s = maximum, -math.inf, _OOM_REST_S

    def began(self, running: int) -> None:
        """Note how many are at work: a value that is not made use of does not rise."""
        self._most_running = max(self._most_running, running)

    def answered(self, latency_s: float, now: float) -> None:
        """Judge the value as soon as enough that began under it have been answered."""
        if now - latency_s < self._changed_at:
            return
        self._pressure_counts = True
        self._window.append(latency_s)
        if len(self._window) >= max(_LEAST_SAMPLES, 2 * self.value):
            self._judge(_trimmed_mean(self._window), now)

    def out_of_memory(self, now: float) -> None:
        """Stay below the level at which it happened."""
        level = min(self.value, self._most_running or self.value)
        self._ceiling = max(self._minimum, level - 1)
        self._ceiling_until = now + self._oom_rest_s
        self._oom_rest_s = min(2 * self._oom_rest_s, _LONGEST_OOM_REST_S)
        self._cut(self._ceiling, now)

    def under_pressure(self, now: float) -> None:
        """Down by a quarter, once until something that began under the new value is done."""
        if self._pressure_counts:
            self._pressure_counts = False
            self._cut(self.value - max(1, self.value // 4), now)

    def _judge(self, latency_s: float, now: float) -> None:
        measures = self._value_after_floor is not None or self.value == self._minimum
        self._follow(latency_s, gain=1 / 2 if measures else 1 / 4 if latency_s < self._floor_s else 0)
        queueing = 1 - self._floor_s / latency_s if latency_s > 0 else 0.0
        self._windows += 1
        was_suspect, self._suspect = self._suspect, queueing > _LARGE_QUEUE
        if self._value_after_floor is not None:
            self._set(min(self._value_after_floor, self._ceiling), now)
            self._value_after_floor = None
        elif queueing > _OBVIOUS_QUEUE or (self._suspect and was_suspect):
            self._cut(min(self.value - 1, round(self.value * (1 - queueing))), now)
        elif self._windows % _FLOOR_EVERY == 0 and self.value > self._minimum:
            self._value_after_floor = self.value
            self._set(max(self._minimum, self.value // 2), now)
        else:
            self._rise(queueing, now)

    def _follow(self, latency_s: float, *, gain: float) -> None:
        self._floor_s = latency_s if self._floor_s == math.inf else self._floor_s + gain * (latency_s - self._floor_s)

    def _rise(self, queueing: float, now: float) -> None:
        used = self._most_running >= self.value
        self._window.clear()
        self._most_running = 0
        if self._patience > 0:
            self._patience -= 1
        elif used and queueing < _SMALL_QUEUE and self._has_room(now):
            self._set(self.value + 1, now)

    def _has_room(self, now: float) -> bool:
        if self.value < self._ceiling:
            return True
        if self._ceiling == self._maximum or now < self._ceiling_until:
            return False
        self._ceiling += 1
        self._ceiling_until = now + self._oom_rest_s
        return True

    def _cut(self, value: int, now: float) -> None:
        self._patience = _PATIENCE
        self._suspect = False
        self._value_after_floor = None
        self._set(max(self._minimum, min(value, self.value)), now)

    def _set(self, value: int, now: float) -> None:
        """Begin a new window: only what begins from now on tells of the new value."""
        self.value = value
        self._changed_at = now
        self._window.clear()
        self._most_running = 0


def build_limit(setting: int | LimitRange) -> Limit:
    """The limit that `stage2.limit` asks for."""
    return AdaptiveLimit(setting.min, setting.max) if isinstance(setting, LimitRange) else FixedLimit(setting)


def _trimmed_mean(window: list[float]) -> float:
    trimmed = int(len(window) * _TRIMMED)
    return statistics.fmean(sorted(window)[trimmed : len(window) - trimmed])
