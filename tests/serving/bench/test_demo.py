"""The demo benchmark: its bars, and pairs with emulated engines in place of the demo models."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ver2.results import read_results
from serving.bench.bars import passed
from serving.bench.daemons import emulated_config
from serving.bench.demo import Pair, bars_of, build_report, measure
from serving.bench.ideal import Workload
from tests.videos import numbered, steady


def pair(ratio: float) -> Pair:
    """A pair with this ratio."""
    return Pair("baseline", 10 * ratio, 10)


def test_pairs_that_are_fast_enough() -> None:
    """The median is at the bar and every pair is faster."""
    assert passed(bars_of([pair(0.8), pair(0.85), pair(0.9)]))


def test_a_slow_median_misses_its_bar() -> None:
    """One fast pair does not help."""
    bars = bars_of([pair(0.2), pair(0.86), pair(0.9)])
    assert [bar.ok for bar in bars] == [False, True]


def test_one_pair_that_is_not_faster_misses_its_bar() -> None:
    """The orchestrator has to win every time."""
    bars = bars_of([pair(0.5), pair(0.5), pair(1.0)])
    assert [bar.ok for bar in bars] == [True, False]


@pytest.mark.slow
async def test_pairs_alternate_after_a_warm_up(tmp_path: Path) -> None:
    """Both sides run on the same daemons, each pair beginning with the other side; the warm-up does not count."""
    progress: list[str] = []
    clip = numbered("bench.mp4", steady(30, 5))
    config = emulated_config(tmp_path, Workload().hurried(100), 2)
    figures = await measure(clip, config, tmp_path, 2, progress.append)
    assert [pair.first for pair in figures.pairs] == ["orchestrator", "baseline"]
    assert figures.engines == {"stage1": "emulated", "stage2": "emulated"}
    assert len(progress) == 3
    report = build_report({}, clip, figures, bars_of(figures.pairs))
    assert report["workload"]["pairs"] == len(report["pairs"]) == 2
    assert all(told["ratio"] > 0 for told in report["pairs"])
    assert all(read_results(tmp_path / "pair-1" / side).counts.ok == 5 for side in ("orchestrator", "baseline"))
