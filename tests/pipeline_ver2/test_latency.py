"""Latencies in bounded memory."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pipeline_ver2.latency import Latencies


def test_none_is_no_summary() -> None:
    """A run without an answer has no latency."""
    assert Latencies().summary() is None


def test_one_is_every_percentile() -> None:
    """A single answer is the median and the worst."""
    latencies = Latencies()
    latencies.add(1.5)
    summary = latencies.summary()
    assert summary is not None
    assert (summary.count, summary.p50_s, summary.p99_s, summary.max_s) == (1, 1.5, 1.5, 1.5)


@pytest.mark.parametrize("scale", [0.01, 1, 50])
def test_percentiles_are_right_within_one_per_cent(scale: float) -> None:
    """However many there are."""
    random_numbers = random.Random(7)
    times = [random_numbers.expovariate(1 / scale) + scale / 10 for _ in range(5000)]
    latencies = Latencies()
    for time in times:
        latencies.add(time)
    summary = latencies.summary()
    assert summary is not None
    expected = np.percentile(times, [50, 90, 99], method="inverted_cdf")
    assert [summary.p50_s, summary.p90_s, summary.p99_s] == pytest.approx(list(expected), rel=0.011)
    assert summary.max_s == max(times)


def test_impossible_times_are_no_error() -> None:
    """A clock that stood still, a wait of weeks."""
    latencies = Latencies()
    for time in (0.0, -1.0, 1e9):
        latencies.add(time)
    summary = latencies.summary()
    assert summary is not None
    assert summary.count == 3
