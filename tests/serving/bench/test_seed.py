"""The seed benchmark: its bars, its report, and a run with short service times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline_ver2.errors import StageError
from pipeline_ver2.results import Counts, Results, Timing, VideoRecord
from serving.bench.bars import passed
from serving.bench.daemons import CLIP
from serving.bench.ideal import Workload
from serving.bench.machine import describe_machine
from serving.bench.rows import ROWS, choose_rows
from serving.bench.seed import PACKAGES, RowFigures, bars_of, build_report, check_work, measure
from tests.serving.bench.figures import figures_of
from tests.videos import numbered, steady


def missed(figures: list[RowFigures]) -> list[str]:
    """Names of the bars that are missed."""
    return [bar.name for bar in bars_of(figures) if not bar.ok]


def with_row(figures: list[RowFigures], name: str, *walls_s: float) -> list[RowFigures]:
    """The same figures, but for one row."""
    return [figures_of(name, *walls_s) if figure.row.name == name else figure for figure in figures]


def test_a_quiet_machine_reaches_all_bars(quiet: list[RowFigures]) -> None:
    """Two bars for each limit of the orchestrator, one for the sequential row, one against the document."""
    assert len(bars_of(quiet)) == 10
    assert missed(quiet) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_slow_row_misses_its_bars(quiet: list[RowFigures], limit: int) -> None:
    """A planted row 7 % over its ideal misses bar and target, and the benchmark fails."""
    planted = with_row(quiet, f"abc{limit}", 1.07 * ROWS[f"abc{limit}"].ideal_s(Workload()))
    name = f"A + B + C at {limit}: wall / ideal"
    assert missed(planted)[:2] == [name, f"target: {name}"]
    assert not passed(bars_of(planted))


def test_a_missed_target_does_not_fail_the_benchmark(quiet: list[RowFigures]) -> None:
    """Between 1.03 and 1.06 the report says so, and no more."""
    planted = with_row(quiet, "abc3", 1.05 * 10.524)
    assert missed(planted) == ["target: A + B + C at 3: wall / ideal"]
    assert passed(bars_of(planted))


def test_a_sequential_row_that_is_too_fast_is_none(quiet: list[RowFigures]) -> None:
    """The services alone take 28.65 s: less means that work was left out."""
    assert missed(with_row(quiet, "sequential", 27.0)) == ["sequential: wall, s"]


def test_a_slow_row_at_two_is_not_46_per_cent_better(quiet: list[RowFigures]) -> None:
    """15.08 s is 45.97 % less than 27.91 s."""
    planted = with_row(quiet, "abc2", 15.08)
    assert missed(planted) == ["A + B + C at 2: per cent better than 27.91 s"]


def test_the_median_of_the_runs_counts() -> None:
    """One slow run of three does not decide, two do."""
    assert figures_of("abc4", 8.5, 20.0, 8.6).wall_s == 8.6
    assert figures_of("abc4", 8.5, 20.0, 20.0).wall_s == 20.0


def test_rows_that_were_not_run_have_no_bars() -> None:
    """The rows between have ideals, but no bars of their own."""
    assert bars_of([figures_of("ab2", 99.0)]) == []


def test_the_report_compares_with_document_and_sequential_row(seed_report: dict[str, Any]) -> None:
    """Per cent less time than 27.91 s, than 16.71 s, and than the sequential row of the same run."""
    told = {row["row"]: row for row in seed_report["rows"]}["abc2"]
    assert told["wall_s"] == pytest.approx(14.9573, abs=1e-4)
    assert told["better_than_documented_percent"] == pytest.approx(46.41, abs=0.01)
    assert told["better_than_documented_ab_percent"] == pytest.approx(10.49, abs=0.01)
    assert told["better_than_sequential_percent"] == pytest.approx(48.82, abs=0.01)


def test_without_a_sequential_row_that_comparison_is_null() -> None:
    """It is never made up from another run."""
    report = build_report({}, CLIP, Workload(), [figures_of("abc1", 27.5)], [])
    assert report["rows"][0]["better_than_sequential_percent"] is None


def results_with(*, ok: int = 13, engine: str = "emulated") -> Results:
    """Results of the documented workload."""
    return Results(
        state="succeeded",
        source="clip.mp4",
        video=VideoRecord(width=2, height=2, duration_s=14, fps=30, rotation=0, timestamps="container"),
        models={"stage1": {"engine": "emulated"}, "stage2": {"engine": engine}},
        keyframes=(),
        slots=(),
        counts=Counts(
            frames_decoded=419,
            frames_grid=419,
            keyframes=38,
            batches=10,
            slots=13,
            ok=ok,
            failed=13 - ok,
            skipped=0,
            shed=0,
            dropped=0,
        ),
        timing=Timing(wall_s=1, first_answer_s=None, stage1_ended_s=None, stage2_began_s=None, busy_s={}),
        warnings=(),
    )


def test_a_run_of_the_whole_workload_is_taken() -> None:
    """All slots answered, both engines emulated."""
    check_work(results_with(), Workload())


def test_a_run_with_an_unanswered_slot_is_no_measurement() -> None:
    """A slot that failed took no time."""
    with pytest.raises(StageError, match="12"):
        check_work(results_with(ok=12), Workload())


def test_a_run_on_another_engine_is_no_measurement() -> None:
    """The ideal holds for the emulated engines only."""
    with pytest.raises(StageError, match="transformers"):
        check_work(results_with(engine="transformers"), Workload())


@pytest.mark.slow
async def test_a_run_with_short_service_times() -> None:
    """Real daemons, two ways: the report says what was run on what, and each row beside its ideal."""
    clip, workload = numbered("bench.mp4", steady(30, 5)), Workload(frames=150).hurried(50)
    progress: list[str] = []
    figures = await measure(clip, choose_rows("sequential,f-on"), workload, 1, progress.append)
    bars = bars_of(figures)
    report = json.loads(json.dumps(build_report(describe_machine(PACKAGES), clip, workload, figures, bars)))

    assert report.keys() == {"bench", "engines", "machine", "workload", "rows", "bars"}
    assert report["engines"] == {"stage1": "emulated", "stage2": "emulated"}
    assert report["workload"]["slots"] == 5
    assert [row["row"] for row in report["rows"]] == ["sequential", "f-on"]
    assert all(row["wall_s"] > row["ideal_s"] > 0 and len(row["runs"]) == 1 for row in report["rows"])
    assert report["rows"][1]["runs"][0]["stage2_began_s"] < report["rows"][1]["runs"][0]["stage1_ended_s"]
    assert report["rows"][1]["runs"][0]["loop_lag"].keys() == {"p50_ms", "p99_ms", "max_ms"}
    assert all(bar.keys() == {"name", "value", "op", "target", "ok"} for bar in report["bars"])
    assert len(progress) == 2
