"""Latencies of a run that may last for days, in bounded memory."""

from __future__ import annotations

import math
from collections import Counter

from pipeline_ver2.results import Latency

_STEP = 1.01  # neighbouring buckets are 1 % apart
_LEAST_S, _MOST_S = 1e-4, 1e5


class Latencies:
    """Counts times in buckets that grow by one per cent: a percentile is at most that much too large."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._count = 0
        self._longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Take a time."""
        bounded = min(max(seconds, _LEAST_S), _MOST_S)
        self._buckets[math.ceil(math.log(bounded, _STEP))] += 1
        self._count += 1
        self._longest_s = max(self._longest_s, seconds)

    def summary(self) -> Latency | None:
        """Percentiles of all of them; None without one."""
        if not self._count:
            return None
        p50, p90, p99 = (self._percentile(share) for share in (0.5, 0.9, 0.99))
        return Latency(count=self._count, p50_s=p50, p90_s=p90, p99_s=p99, max_s=self._longest_s)

    def _percentile(self, share: float) -> float:
        wanted, seen = math.ceil(share * self._count), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return float(min(_STEP**bucket, self._longest_s))
        return self._longest_s
