"""An overloaded hour, and engines the adaptive limit does not know: what the scheduler must reach."""

from __future__ import annotations

import json

import pytest

from serving.bench.bars import passed
from serving.bench.scheduler import (
    ENGINES,
    JITTER,
    MIN_SHARE,
    SERVICE_S,
    HourFigures,
    LimitFigures,
    adaptive_hour,
    bars_of,
    best_fixed,
    build_report,
    jittered,
    overloaded_hour,
)

# What a formula says of the best fixed limit: answers a second. The benchmark finds it by trying all of them.
BEST = {"flat to 4": (4, 4 / SERVICE_S), "flat to 16": (16, 16 / SERVICE_S), "out of memory at 6": (5, 5 / SERVICE_S)}


@pytest.mark.parametrize("window", [1, 2, 4])
def test_an_overloaded_hour_with_equal_times(window: int) -> None:
    """No answer is late, nothing of the engine is wasted, and the file job gets its share."""
    hour = overloaded_hour(0.0, window=window)
    assert hour.live_late == 0
    assert hour.live_on_time + hour.file_answered >= 0.95 * hour.capacity
    assert hour.file_share >= MIN_SHARE - 1 / (hour.live_on_time + hour.file_answered)
    assert hour.live_shed + hour.live_on_time >= hour.live_sent - 5


def test_an_overloaded_hour_with_times_that_vary() -> None:
    """At most one answer in a hundred is late, and the rest still holds."""
    hour = overloaded_hour(JITTER)
    assert hour.late_share <= 0.01
    assert hour.useful_share >= 0.95
    assert hour.file_share >= MIN_SHARE - 1 / (hour.live_on_time + hour.file_answered)


def test_without_a_share_the_file_job_gets_what_is_left() -> None:
    """Which is next to nothing: the share above is the scheduler's doing."""
    assert overloaded_hour(0.0, min_share=0.0).file_share < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.0, JITTER])
@pytest.mark.parametrize("engine", list(ENGINES))
def test_the_adaptive_limit_finds_what_an_engine_bears(engine: str, jitter: float) -> None:
    """Nearly the throughput of the best fixed limit, answers nearly as quick as one alone, memory out once at most."""
    figures = adaptive_hour(engine, jitter, BEST[engine])
    assert figures.of_best >= 0.9
    assert figures.latency_p50_s <= 1.3 * SERVICE_S
    assert figures.out_of_memory <= 1


def test_the_best_fixed_limit_is_found_by_trying() -> None:
    """It answers the most without ever running out of memory."""
    limit, throughput = best_fixed("out of memory at 6", [1, 5, 6, 7])
    assert limit == 5
    assert throughput == pytest.approx(5 / SERVICE_S, rel=0.02)


def test_engines_are_as_they_are_called() -> None:
    """Flat, then linear or full; jitter varies times and leaves the end of the memory where it is."""
    assert [ENGINES["flat to 4"](running) for running in (1, 4, 8)] == [SERVICE_S, SERVICE_S, 2 * SERVICE_S]
    assert ENGINES["flat to 16"](16) == SERVICE_S
    full = jittered(ENGINES["out of memory at 6"], JITTER)
    assert full(6) is None
    times = [full(5) or 0 for _ in range(200)]
    assert 0.8 * SERVICE_S <= min(times) < 0.85 * SERVICE_S
    assert 1.15 * SERVICE_S < max(times) <= 1.2 * SERVICE_S


GOOD_HOUR = HourFigures(
    jitter=0.2, live_sent=99, live_on_time=89, live_late=0, live_shed=10, file_answered=10, capacity=100
)
GOOD_LIMIT = LimitFigures(
    engine="flat to 4",
    jitter=0.0,
    throughput=1.9,
    best_fixed_throughput=1.93,
    best_fixed_limit=4,
    latency_p50_s=2.1,
    limit_at_end=4,
    out_of_memory=0,
)


def test_the_report_is_json_with_its_bars() -> None:
    """All figures are in it."""
    bars = bars_of([GOOD_HOUR], [GOOD_LIMIT])
    report = json.loads(json.dumps(build_report({"cpu": "x"}, [GOOD_HOUR], [GOOD_LIMIT], bars)))
    assert passed(bars)
    assert (report["benchmark"], report["machine"]) == ("scheduler", {"cpu": "x"})
    assert report["overloaded_hour"][0]["live_shed"] == 10
    assert report["adaptive_limit"][0]["best_fixed_limit"] == 4
    assert len(report["bars"]) == 6
    assert all(bar["ok"] for bar in report["bars"])


@pytest.mark.parametrize(
    "bad",
    [
        HourFigures(jitter=0.2, live_sent=99, live_on_time=80, live_late=2, live_shed=0, file_answered=20, capacity=99),
        HourFigures(jitter=0.0, live_sent=99, live_on_time=80, live_late=0, live_shed=0, file_answered=10, capacity=99),
        HourFigures(jitter=0.0, live_sent=99, live_on_time=99, live_late=0, live_shed=0, file_answered=1, capacity=100),
        HourFigures(jitter=0.0, live_sent=99, live_on_time=0, live_late=0, live_shed=99, file_answered=99, capacity=99),
    ],
)
def test_a_bad_hour_misses_a_bar(bad: HourFigures) -> None:
    """Late answers, wasted time, a starved file job, or no live answer at all."""
    assert not passed(bars_of([bad], []))
