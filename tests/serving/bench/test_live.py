"""`zroact bench live`: the whole in a short form, and what its bars see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline_ver2.main import probe_video
from pipeline_ver2.probe import VideoInfo
from pipeline_ver2.recent import RecentRecords
from pipeline_ver2.report import build_results
from pipeline_ver2.results import Results
from pipeline_ver2.video import ExtractionReport
from serving.bench import live
from serving.bench.live import LiveFigures, StreamFigures, bars_of, build_report, measure, write_clip
from serving.bench.tables import bars_table, live_table


def results_with(**counts: int) -> Results:
    """Results of a run with these counts."""
    made = build_results(
        source=Path("clip.mp4"),
        video=VideoInfo(Path("clip.mp4"), 320, 240, None, 30.0, 0, "mpeg4", "container", None),
        extraction=ExtractionReport(),
        models={},
        records=RecentRecords(1, 1),
        batches=0,
        spans=(),
        wall_s=1,
    )
    return made.model_copy(update={"counts": made.counts.model_copy(update=counts)})


def stream(ok: int = 70, shed: int = 38, latency_s: float = 4.5) -> StreamFigures:
    """A stream whose 324 keyframes make 108 slots."""
    return StreamFigures(324, {"ok": ok, "shed": shed}, (latency_s,) * ok, results_with(ok=ok, shed=shed))


GOOD = LiveFigures(
    {f"camera-{number}": stream() for number in range(4)}, 5, 120, {"p99_ms": 9.0}, (90.0, 150, 150, 150, 150, 151)
)


def missed(figures: LiveFigures) -> list[str]:
    """The first words of each bar that is missed."""
    return [" ".join(bar.name.split()[:2]) for bar in bars_of(figures) if not bar.ok]


def one_is(figures: StreamFigures) -> LiveFigures:
    """Good figures, but for one stream."""
    return replace(GOOD, streams={**GOOD.streams, "camera-0": figures})


def test_good_figures_reach_every_bar() -> None:
    """And can be shown."""
    report = build_report({"cpu": "", "cores": 2, "memory_gb": 1, "load_average": [0]}, GOOD, bars_of(GOOD))
    assert missed(GOOD) == []
    assert json.loads(json.dumps(report))["live"]["streams"]["camera-0"]["arrived"] == 108
    assert live_table(report).row_count == 4
    assert bars_table(bars_of(GOOD)).row_count == 7


@pytest.mark.parametrize(
    ("figures", "bar"),
    [
        (one_is(stream(ok=62, shed=46)), "least served"),
        (one_is(stream(latency_s=5.2)), "frame to"),
        (one_is(replace(stream(), keyframes=327)), "slots not"),
        (one_is(replace(stream(), states={"ok": 71, "shed": 37})), "slots not"),
        (replace(GOOD, loop_lag={"p99_ms": 21.0}), "event loop:"),
        (replace(GOOD, loop_lag={}), "event loop:"),
        (replace(GOOD, rss_mb=(150.0, 150, 150, 160, 160, 160)), "memory, last"),
    ],
)
def test_what_is_wrong_misses_its_bar(figures: LiveFigures, bar: str) -> None:
    """An unfair share, a late answer, a slot too few or told otherwise, a blocked loop, a leak."""
    assert bar in missed(figures)


def test_little_load_proves_nothing() -> None:
    """Half the slots are no overload."""
    calm = StreamFigures(162, {"ok": 54}, (1.0,) * 54, results_with(ok=54))
    assert "slots offered" in missed(replace(GOOD, streams={"a": calm, "b": calm}))


@pytest.mark.slow
async def test_a_short_run(tmp_path: Path) -> None:
    """Real daemons, real streams: every slot is counted, none is answered late."""
    figures = await measure(tmp_path, 8, lambda _: None)
    assert len(figures.streams) == 4
    assert all(each.uncounted == 0 for each in figures.streams.values())
    assert all(each.arrived >= 6 for each in figures.streams.values())
    assert sum(figures.answered) > 0
    assert max(figures.latencies_s) <= figures.deadline_s + live.SERVICE_S
    assert figures.rss_mb


def test_the_clip_plays_as_long_as_it_should(tmp_path: Path) -> None:
    """At 30 frames a second."""
    info = probe_video(write_clip(tmp_path / "a.mp4", 2))
    assert (info.width, info.height, info.fps, info.duration_s) == (320, 240, 30, 2)
