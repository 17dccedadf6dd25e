"""Results put together, the timeline, the summary."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from pipeline_ver2 import report
from pipeline_ver2.main import ExtractionReport, Span, VideoInfo
from pipeline_ver2.results import KeyframeRecord, Latency, Records, Results, RunState, SlotRecord, SlotState

SPANS = (
    Span("decode", 0.0, 0.5, {}),
    Span("stage1_run", 0.5, 1.0, {"batch": 0}),
    Span("stage2_run", 0.9, 3.0, {"slot": 0}),
    Span("stage2_run", 2.0, 4.0, {"slot": 1}),
)
KEYFRAME = KeyframeRecord(key_index=11, time_s=0.3, state="ok")


def slot(index: int, state: SlotState = "ok") -> SlotRecord:
    """A slot in this state."""
    answer = {"action": "walk", "description": "One person walks."} if state == "ok" else None
    return SlotRecord(index=index, key_indices=(11,), start_s=0.3, end_s=1.1, state=state, answer=answer, reason=state)


def results(
    *slots: SlotRecord,
    extraction: ExtractionReport | None = None,
    engine: str = "onnx",
    ended: tuple[RunState | None, str | None] = (None, None),
) -> Results:
    """Results with these slots."""
    return report.build_results(
        source=Path("/somewhere/walk.mp4"),
        video=VideoInfo(Path("walk.mp4"), 640, 360, 14.0, 30.0, 0, "h264", "container", 419),
        extraction=extraction or ExtractionReport(),
        models={"stage1": {"name": "yowov3", "engine": engine}, "stage2": {"name": "vlm", "engine": "x"}},
        records=Records(
            {11: KeyframeRecord(key_index=11, time_s=0.3, state="ok")}, {each.index: each for each in slots}
        ),
        batches=1,
        spans=SPANS,
        wall_s=4.2,
        ended=ended,
    )


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((), "succeeded"),
        (("ok", "skipped"), "succeeded"),
        (("ok", "failed"), "partial"),
        (("shed",), "partial"),
        (("dropped",), "partial"),
    ],
)
def test_the_slots_decide_the_state(states: tuple[SlotState, ...], expected: str) -> None:
    """Answered and skipped slots are success, anything lost makes the run partial."""
    assert results(*(slot(index, state) for index, state in enumerate(states))).state == expected


@pytest.mark.fault("V8")
def test_a_damaged_source_is_never_plain_success() -> None:
    """With every slot ok, damage still makes the run partial and is told with its range."""
    damaged = ExtractionReport(damaged=[(2.0, 2.4)])
    told = results(slot(0), extraction=damaged)

    assert told.state == "partial"
    assert "damaged from 2.00 s to 2.40 s; decoded on after it" in told.warnings


def test_a_run_that_was_stopped_says_so() -> None:
    """The state of a run that did not reach its end is not left to the slots."""
    told = results(slot(0), ended=("failed", "stage2 is away"))
    assert (told.state, told.error) == ("failed", "stage2 is away")


def test_slots_are_counted_by_state() -> None:
    """Each state has its count, and the counts add up to the slots."""
    counts = results(slot(0), slot(1, "failed"), slot(2, "shed"), slot(3, "skipped"), slot(4, "dropped")).counts
    assert (counts.ok, counts.failed, counts.shed, counts.skipped, counts.dropped) == (1, 1, 1, 1, 1)
    assert counts.slots == 5


def test_an_emulated_stage_is_named_in_the_results() -> None:
    """Nobody takes emulated results for real ones."""
    assert any("stage1: emulated" in warning for warning in results(engine="emulated").warnings)


def test_times_come_from_the_spans() -> None:
    """First answer, end of Stage 1, begin of Stage 2, and busy time without counting overlap twice."""
    timing = results(slot(0)).timing
    assert (timing.wall_s, timing.first_answer_s, timing.stage1_ended_s, timing.stage2_began_s) == (4.2, 3.0, 1.0, 0.9)
    assert timing.busy_s["stage2_run"] == pytest.approx(3.1)
    assert timing.busy_s["stage2_wait"] == 0


def test_the_trace_has_every_span_in_microseconds(tmp_path: Path) -> None:
    """The Chrome trace names its rows and holds complete events."""
    events = json.loads(report.write_timeline(tmp_path, SPANS).read_text())["traceEvents"]
    whole = [event for event in events if event["ph"] == "X"]

    assert [(event["name"], event["ts"], event["dur"]) for event in whole] == [
        ("decode", 0, 500_000),
        ("stage1_run", 500_000, 500_000),
        ("stage2_run", 900_000, 2_100_000),
        ("stage2_run", 2_000_000, 2_000_000),
    ]
    assert {event["tid"] for event in whole} <= {event["tid"] for event in events if event["ph"] == "M"}


def test_the_picture_is_an_svg_with_a_bar_for_each_span(tmp_path: Path) -> None:
    """The picture is well-formed and drawn for no spans as well."""
    for spans in (SPANS, ()):
        root = ET.parse(report.draw_timeline(tmp_path, spans)).getroot()  # noqa: S314 - our own file
        assert root.tag.endswith("svg")


def test_a_long_run_is_drawn_with_the_bars_that_can_be_seen(tmp_path: Path) -> None:
    """Ten thousand short spans after one another are one bar, and no time of them is lost; long ones stay apart."""
    short = [Span("decode", number / 100, number / 100 + 0.009, {}) for number in range(10_000)]
    ((start, length),) = report.visible_bars(short, 0.025)
    assert (start, length) == pytest.approx((0, 99.999))
    apart = [Span("decode", 5, 6, {}), Span("decode", 6, 7, {}), Span("decode", 9, 9.001, {})]
    assert list(report.visible_bars(apart, 0.025)) == [(5, 1), (6, 1), (9, pytest.approx(0.001))]
    assert list(report.visible_bars([], 0.025)) == []
    assert report.draw_timeline(tmp_path, [*short, *SPANS]).stat().st_size < 100_000


def test_the_summary_tells_counts_answers_and_reasons() -> None:
    """The table has the clip, each slot's outcome and every warning."""
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(report.summary_table(results(slot(0), slot(1, "failed"), engine="emulated")))
    text = capture.get()

    assert "walk.mp4: partial" in text
    assert "1 ok, 1 failed" in text
    assert "walk One person walks." in text
    assert "failed: failed" in text
    assert "stage1: emulated" in text


def test_a_live_run_has_a_row_of_its_own(tmp_path: Path) -> None:
    """From a slot's last frame to its answer; other runs have none."""
    live = [*SPANS, Span(report.END_TO_END, 0.5, 2.0, {"slot": 0})]
    for spans, expected in ((live, 1), (SPANS, 0)):
        events = json.loads(report.write_timeline(tmp_path, spans).read_text())["traceEvents"]
        named = [event["args"]["name"] for event in events if event["ph"] == "M"]
        assert named.count(report.END_TO_END) == expected
        assert ("end to end" in report.draw_timeline(tmp_path, spans).read_text()) == bool(expected)


def test_what_only_live_runs_tell() -> None:
    """Their source without secrets, gaps, losses and latency, in the results and in the summary."""
    latency = Latency(count=3, p50_s=1.25, p90_s=2.5, p99_s=3.75, max_s=4)
    lost = {"slots": {"shed_deadline": 2}}
    told = report.add_live(results(slot(0)), source="rtsp://cam/1", gaps=2, lost=lost, latency=latency)
    assert (told.source, told.counts.gaps, told.counts.lost, told.timing.latency) == ("rtsp://cam/1", 2, lost, latency)
    shown = [str(cell) for column in report.summary_table(told).columns for cell in column.cells]
    assert "1.25 s / 2.50 s / 3.75 s" in shown
    assert "2 shed_deadline" in shown
