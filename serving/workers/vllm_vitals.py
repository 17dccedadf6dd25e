"""Reads vLLM's own metrics: does it get on with its work, and has it memory left for it?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Self

PRESSED_USAGE = 0.95

_CACHE_USAGE = "vllm:kv_cache_usage_perc"
_PREEMPTIONS = "vllm:num_preemptions_total"
# Each step of the engine moves one of these; requests that are only given up do not.
_WORK = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total", "vllm:prompt_tokens_total")


@dataclass(frozen=True, slots=True)
class Reading:
    """One look: the used share 0..1 of the cache, preemptions so far, and a number that grows with each step."""

    cache_usage: float
    preemptions: float
    work: float

    @classmethod
    def of(cls, text: str) -> Self:
        """Read Prometheus text; what it lacks counts as 0."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for line in text.splitlines():
            if line.startswith("vllm:"):
                series, _, value = line.rpartition(" ")
                try:
                    values[series.partition("{")[0]].append(float(value))
                except ValueError:
                    continue
        return cls(
            cache_usage=max(values[_CACHE_USAGE], default=0.0),
            preemptions=sum(values[_PREEMPTIONS]),
            work=sum(sum(values[name]) for name in _WORK),
        )


class Vitals:
    """What follows from looks one after another; times are those of one clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._last: Reading | None = None
        self._moved_at = now
        self.has_moved = False
        self.is_pressed = False

    def note(self, reading: Reading | None, *, has_work: bool, now: float) -> None:
        """Take in a look, None if the metrics could not be read; `has_work` says whether it has anything to do."""
        last, self._last = self._last, reading
        known = reading is not None and last is not None
        self.has_moved = reading is not None and last is not None and reading.work > last.work
        self.is_pressed = reading is not None and (
            reading.cache_usage > PRESSED_USAGE or (last is not None and reading.preemptions > last.preemptions)
        )
        if self.has_moved or not has_work or not known:
            self._moved_at = now

    def stalled_s(self, now: float) -> float:
        """How long it has had work and done none."""
        return now - self._moved_at
