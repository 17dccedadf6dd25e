"""What a run leaves behind: results, the summary, and the timeline as Chrome trace and as a picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from pipeline_ver2.main import ExtractionReport, Span, VideoInfo
from pipeline_ver2.results import Counts, Latency, Records, Results, RunState, SlotRecord, Timing, VideoRecord

TRACE_NAME = "timeline.json"
PICTURE_NAME = "timeline.svg"
_PICTURE_STEPS = 4000  # of its width; a bar that is shorter is not seen alone

END_TO_END = "end_to_end"

# Rows of the timeline, top to bottom, with the colour of each kind of span.
_ROWS = {
    "decode": "#8da0cb",
    "preprocess": "#a6d854",
    "stage1_wait": "#fdd0a2",
    "stage1_run": "#e6550d",
    "slot_wait": "#dadaeb",
    "stage2_wait": "#9ecae1",
    "stage2_run": "#3182bd",
}


def build_results(
    *,
    source: Path,
    video: VideoInfo,
    extraction: ExtractionReport,
    models: dict[str, dict[str, Any]],
    records: Records,
    batches: int,
    spans: Sequence[Span],
    wall_s: float,
    untimed: int = 0,
    ended: tuple[RunState | None, str | None] = (None, None),
    events: int = 0,
    unsent: Sequence[str] = (),
) -> Results:
    """Put the results together.

    Args:
        source: The video file.
        video: What was found in its header.
        extraction: What was decoded.
        models: What each stage says of its model.
        records: Keyframes and slots.
        batches: Stage 1 requests sent.
        spans: Times, in seconds from the call of the orchestrator.
        wall_s: Time since the call.
        untimed: Spans that the recorder had no room for.
        ended: State and error of a run that did not reach its end; (None, None) lets the records decide.
        events: How many events there were.
        unsent: What was not told of them.
    """
    keyframes = tuple(record for _, record in sorted(records.keyframes.items()))
    slots = tuple(record for _, record in sorted(records.slots.items()))
    state, error = ended
    return Results(
        state=state or _state(records, extraction),
        error=error,
        source=source.name,
        video=_video(video),
        models=models,
        keyframes=keyframes,
        slots=slots,
        counts=_counts(extraction, records, batches, events),
        timing=_timing(spans, wall_s),
        warnings=(*_model_warnings(models), *_damage(extraction), *extraction.warnings, *_untimed(untimed), *unsent),
    )


def _video(video: VideoInfo) -> VideoRecord:
    return VideoRecord(
        width=video.width,
        height=video.height,
        duration_s=video.duration_s,
        fps=video.fps,
        rotation=video.rotation,
        timestamps=video.timestamps,
    )


def add_live(
    results: Results, *, source: str, gaps: int, lost: dict[str, dict[str, int]], latency: Latency | None
) -> Results:
    """Add what only live runs tell to their results."""
    counts = results.counts.model_copy(update={"gaps": gaps, "lost": lost})
    timing = results.timing.model_copy(update={"latency": latency})
    return results.model_copy(update={"source": source, "counts": counts, "timing": timing})


def write_timeline(folder: Path, spans: Sequence[Span], trace_id: str | None = None) -> Path:
    """Write the spans as a Chrome trace (https://ui.perfetto.dev opens it); times in microseconds.

    Each request to a stage has its `span_id` in the trace of the job, which is named too.
    """
    path = folder / TRACE_NAME
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps({"trace_id": trace_id})}, "traceEvents": [')
        for number, event in enumerate(_trace_events(spans)):  # one by one: there may be a hundred thousand
            file.write(f"{',' if number else ''}\n{json.dumps(event)}")
        file.write("\n]}\n")
    return path


def _trace_events(spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    rows = {name: number for number, name in enumerate(_rows_of(spans))}
    for name, number in rows.items():
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": name}}
    for span in spans:
        yield {
            "ph": "X",
            "name": span.name,
            "cat": span.name.split("_")[0],
            "pid": 1,
            "tid": rows.get(span.name, len(rows)),
            "ts": round(span.start_s * 1e6),
            "dur": round((span.end_s - span.start_s) * 1e6),
            "args": dict(span.attributes),
        }


def draw_timeline(folder: Path, spans: Sequence[Span]) -> Path:
    """Draw both stages over time as an SVG picture. Call it when the clock has stopped: it takes a second."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    axes = figure.subplots()
    shortest_s = max((span.end_s for span in spans), default=0) / _PICTURE_STEPS
    rows = _rows_of(spans)
    for row, (name, colour) in enumerate(rows.items()):
        bars = list(visible_bars((span for span in spans if span.name == name), shortest_s))
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=colour, edgecolor="white", linewidth=0.3)
    axes.set_yticks(range(len(rows)), [name.replace("_", " ") for name in rows])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds from the call of the pipeline")
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.set_title("Both stages over time")
    path = folder / PICTURE_NAME
    figure.savefig(path)
    return path


def visible_bars(spans: Iterable[Span], shortest_s: float) -> Iterator[tuple[float, float]]:
    """Starts and lengths of the bars of one row: what is shorter and follows at once is joined to the bar before it."""
    start_s = end_s = None
    for span in sorted(spans, key=lambda span: span.start_s):
        if end_s is not None and span.start_s - end_s < shortest_s and span.end_s - span.start_s < shortest_s:
            end_s = max(end_s, span.end_s)
            continue
        if start_s is not None and end_s is not None:
            yield start_s, end_s - start_s
        start_s, end_s = span.start_s, span.end_s
    if start_s is not None and end_s is not None:
        yield start_s, end_s - start_s


def _rows_of(spans: Sequence[Span]) -> dict[str, str]:
    """The rows of a timeline; live runs have one more, from the arrival of a slot's last frame to its answer."""
    is_live = any(span.name == END_TO_END for span in spans)
    return {**_ROWS, END_TO_END: "#9e9ac8"} if is_live else _ROWS


def summary_table(results: Results) -> Table:
    """The summary people see at the end of a run."""
    counts, timing = results.counts, results.timing
    table = Table(title=f"{results.source}: {results.state}", show_header=False)
    slots = ", ".join(
        f"{number} {name}"
        for name in ("ok", "failed", "skipped", "shed", "dropped")
        if (number := getattr(counts, name)) or name == "ok"
    )
    table.add_row("frames", f"{counts.frames_decoded} decoded, {counts.frames_grid} on the grid")
    table.add_row("keyframes", f"{counts.keyframes} in {counts.batches} Stage 1 batches")
    table.add_row("slots", f"{counts.slots}: {slots}")
    table.add_row("events", str(counts.events))
    table.add_row("wall time", f"{timing.wall_s:.2f} s")
    table.add_row("first answer", _seconds(timing.first_answer_s))
    table.add_row(
        "Stage 2 began / Stage 1 ended", f"{_seconds(timing.stage2_began_s)} / {_seconds(timing.stage1_ended_s)}"
    )
    if timing.latency is not None:
        times = (timing.latency.p50_s, timing.latency.p90_s, timing.latency.p99_s)
        table.add_row("frame to answer, p50 / p90 / p99", " / ".join(_seconds(time) for time in times))
    for kind, reasons in counts.lost.items():
        table.add_row(f"{kind} lost", ", ".join(f"{number} {reason}" for reason, number in reasons.items()))
    for name, busy_s in timing.busy_s.items():
        table.add_row(f"  {name.replace('_', ' ')}", f"{busy_s:.2f} s")
    for slot in results.slots:
        table.add_row(f"slot {slot.index}, {slot.start_s:.2f}-{slot.end_s:.2f} s", outcome_of(slot))
    for warning in results.warnings:
        table.add_row("warning", warning)
    return table


def busy_seconds(spans: Iterable[Span]) -> float:
    """Length of the union of the spans: the time in which at least one was running."""
    total, reach = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start_s):
        total += max(0.0, span.end_s - max(reach, span.start_s))
        reach = max(reach, span.end_s)
    return total


def _state(records: Records, extraction: ExtractionReport) -> RunState:
    whole = records.states().keys() <= {"ok", "skipped"}
    return "succeeded" if whole and not extraction.damaged else "partial"


def _counts(extraction: ExtractionReport, records: Records, batches: int, events: int) -> Counts:
    states = records.states()
    return Counts(
        frames_decoded=extraction.frames_decoded,
        frames_grid=extraction.frames_grid,
        keyframes=records.keyframes_seen,
        batches=batches,
        slots=states.total(),
        ok=states["ok"],
        failed=states["failed"],
        skipped=states["skipped"],
        shed=states["shed"],
        dropped=states["dropped"],
        events=events,
    )


def _timing(spans: Sequence[Span], wall_s: float) -> Timing:
    def ends(name: str) -> list[float]:
        return [span.end_s for span in spans if span.name == name]

    return Timing(
        wall_s=wall_s,
        first_answer_s=min(ends("stage2_run"), default=None),
        stage1_ended_s=max(ends("stage1_run"), default=None),
        stage2_began_s=min((span.start_s for span in spans if span.name == "stage2_run"), default=None),
        busy_s={name: busy_seconds(span for span in spans if span.name == name) for name in _ROWS},
    )


def _damage(extraction: ExtractionReport) -> list[str]:
    return [f"damaged from {start:.2f} s to {end:.2f} s; decoded on after it" for start, end in extraction.damaged]


def _untimed(spans: int) -> list[str]:
    return [f"{spans} spans were not kept: the times of single steps are too small"] if spans else []


def _model_warnings(models: dict[str, dict[str, Any]]) -> list[str]:
    """What each stage says a reader must know of it; an emulated stage is named even if it does not say so."""
    emulated = "emulated: its results mean nothing"
    told = {stage: model.get("note") or (model["engine"] == "emulated" and emulated) for stage, model in models.items()}
    return [f"{stage}: {note}" for stage, note in told.items() if note]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def outcome_of(slot: SlotRecord) -> str:
    """A slot in one line: its action, confidence and description, or why there is none."""
    if slot.answer is None:
        return f"{slot.state}: {slot.reason}"
    confidence = "" if slot.confidence is None else f" ({slot.confidence:.2f})"
    told = slot.answer.get("action", json.dumps(slot.answer))
    return f"{told}{confidence} {slot.answer.get('description', '')}"
