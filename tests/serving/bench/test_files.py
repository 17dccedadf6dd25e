"""The files benchmark: its bars, its clip, and a short film through the orchestrator with emulated engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ver2.errors import StageError
from pipeline_ver2.main import FrameExtractor
from pipeline_ver2.results import Counts, Results, Timing, VideoRecord
from serving.bench.bars import passed
from serving.bench.daemons import emulated_config
from serving.bench.files import (
    FilesFigures,
    Plan,
    Round,
    bars_of,
    build_report,
    make_clip,
    measure,
    measure_round,
    repeat_clip,
)
from serving.bench.ideal import Workload
from serving.bench.machine import describe_machine
from serving.bench.tables import files_table

SMALL = (192, 108)


def results() -> Results:
    """Results of a run whose counts are told."""
    whole = {name: 0 for name, field in Counts.model_fields.items() if field.is_required()}
    counts = whole | {"frames_decoded": 300, "keyframes": 27, "slots": 9, "ok": 9}
    return Results(
        state="succeeded",
        source="long.mp4",
        video=VideoRecord(width=192, height=108, duration_s=10, fps=30, rotation=0, timestamps="container"),
        models={"stage1": {"engine": "emulated"}, "stage2": {"engine": "emulated"}},
        keyframes=(),
        slots=(),
        counts=Counts.model_validate(counts),
        timing=Timing(wall_s=5, first_answer_s=1, stage1_ended_s=4, stage2_began_s=1, busy_s={}),
        warnings=(),
    )


def figures(
    ratios: tuple[float, ...] = (0.9, 0.95, 1.0),
    running: tuple[float, ...] = (200, 200, 205, 206),
    drawing: float = 250,
) -> FilesFigures:
    """A machine that does well, but for what is named."""
    rounds = tuple(Round(extraction=100 * ratio, bare=100, scaled=300) for ratio in ratios)
    return FilesFigures(rounds, 1800, 600, results(), running, (drawing,))


def test_a_run_that_does_well() -> None:
    """Every bar is reached."""
    assert [bar.ok for bar in bars_of(figures())] == [True] * 3


def test_slow_extraction_misses_its_bar() -> None:
    """One fast round does not help."""
    assert [bar.ok for bar in bars_of(figures(ratios=(0.5, 0.84, 1.2)))] == [False, True, True]


def test_growing_memory_misses_its_bar() -> None:
    """From half to half, whatever the first samples of a starting process were."""
    assert [bar.ok for bar in bars_of(figures(running=(5, 200, 200, 215, 215, 215)))] == [True, False, True]
    assert passed(bars_of(figures(running=(5, 200, 200, 205, 205, 205))))


def test_memory_counts_while_the_timeline_is_drawn() -> None:
    """The most is the most of the whole process."""
    assert [bar.ok for bar in bars_of(figures(drawing=401))] == [True, True, False]


def test_the_report_and_its_table() -> None:
    """Engines are called emulated; times real time is the film's length by the run's."""
    plan = Plan(minutes=30, rounds=3)
    report = build_report(describe_machine([]), plan, figures(), bars_of(figures()))
    assert report["engines"] == {"stage1": "emulated", "stage2": "emulated"}
    assert report["run"]["times_real_time"] == 3
    assert report["extraction"]["median_ratio"] == 0.95
    assert files_table(report).row_count == 3 + 3


def test_a_clip_written_again_and_again_is_one_film(tmp_path: Path) -> None:
    """Every frame once more for each time, at 30 a second throughout, and none out of order."""
    clip, film = tmp_path / "clip.mp4", tmp_path / "film.mp4"
    make_clip(clip, size=SMALL, seconds=1)
    repeat_clip(clip, film, 3)
    with FrameExtractor(film, grid_fps=None, keyframe_interval=11, model_size=(32, 32)) as frames:
        times = [frame.time_s for frame in frames]
        assert frames.report.warnings == []
    assert times == pytest.approx([number / 30 for number in range(90)], abs=1e-4)


def test_a_round_measures_every_way(tmp_path: Path) -> None:
    """The order is turned round each time; every way gets all frames."""
    make_clip(tmp_path / "clip.mp4", size=SMALL, seconds=0.5)
    for number in (1, 2):
        measured = measure_round(tmp_path / "clip.mp4", number)
        assert min(measured.extraction, measured.bare, measured.scaled) > 0
        assert measured.ratio == measured.extraction / measured.bare


@pytest.mark.slow
async def test_a_short_film_is_measured(tmp_path: Path) -> None:
    """Real daemons with emulated engines, the orchestrator in a process of its own, its memory sampled."""
    told: list[str] = []
    plan = Plan(minutes=0.34, rounds=1, size=SMALL)
    measured = await measure(emulated_config(tmp_path, Workload().hurried(100), 2), tmp_path, plan, told.append)
    counts = measured.results.counts
    assert (counts.frames_decoded, counts.keyframes, counts.slots, counts.ok) == (600, 54, 18, 18)
    assert measured.seconds == 20
    assert len(measured.running_mb) > 1
    assert 20 < measured.peak_mb < 1000
    assert len(told) == 2


async def test_a_run_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    """Its last line, not silence: here nobody listens."""
    from serving.bench.files import run_apart

    config = emulated_config(tmp_path, Workload(), 2)
    with pytest.raises(StageError, match="ended with 1"):
        await run_apart(tmp_path / "missing.mp4", tmp_path, config)
