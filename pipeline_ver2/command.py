"""The command line of the orchestrator: `python pipeline_ver2/realtime_pipeline.py CLIP` and `zroact run CLIP`.

Exit codes: 0 succeeded, 3 partial, 1 fatal, 2 usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pipeline_ver2 import report
from pipeline_ver2.config import Config, load_config
from pipeline_ver2.errors import ConfigError, ResultsError, ZroactError
from pipeline_ver2.event_file import EVENTS_NAME
from pipeline_ver2.interrupts import raise_again
from pipeline_ver2.job import Job, Observer, Silent
from pipeline_ver2.live_options import LiveOptions
from pipeline_ver2.main import TimingRecorder, probe_video
from pipeline_ver2.overlay import annotate
from pipeline_ver2.painting import Between, Caption, KeyframeOverlay
from pipeline_ver2.prompts import check_settings
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import RESULTS_NAME, Journal, KeyframeRecord, Results, SlotRecord
from pipeline_ver2.supervisor import Supervisor

LOG_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"
VIDEO_NAME = "annotated.mp4"
EXIT_FATAL, EXIT_USAGE, EXIT_PARTIAL, EXIT_INTERRUPTED = 1, 2, 3, 130

LIVE_SPANS = 20_000

T = TypeVar("T")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run(
    clip: Annotated[str, typer.Argument(help="A video, or a live source: rtsp://, http://, /dev/video0, - for stdin.")],
    out: Annotated[Path | None, typer.Option(help="Output folder; default out/<name of the clip>.")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file; default ./config.json.")] = None,
    gate: Annotated[str | None, typer.Option(help="all: ask about every slot; detections: only with findings.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Stage 2 requests at a time.")] = None,
    boxes: Annotated[str | None, typer.Option(help="With --annotate, between keyframes: hold or interpolate.")] = None,
    policy: Annotated[str | None, typer.Option(help="Live, if too fast: WAIT, DROP_OLDEST or DROP_LATEST.")] = None,
    deadline: Annotated[float | None, typer.Option(min=0, help="Live: seconds from frame to answer; 0: any.")] = None,
    duration: Annotated[float | None, typer.Option(min=0.1, help="Live: seconds after which it ends.")] = None,
    until: Annotated[str | None, typer.Option(help="Live: when it ends, as ISO 8601 has it.")] = None,
    *,
    live: Annotated[bool, typer.Option("--live", help="Read the video as fast as it plays, as a camera.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the results in the output folder.")] = False,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="With --resume: failed ones stay.")] = False,
    annotated: Annotated[bool, typer.Option("--annotate", help="Write an annotated video as well.")] = False,
    no_spawn: Annotated[bool, typer.Option("--no-spawn", help="Use running daemons only.")] = False,
) -> None:
    """Find who does what in a video: the detector looks first, the vision-language model looks again."""
    with exit_codes():
        settings = load_config(
            config,
            {
                "pipeline.gate": gate,
                "pipeline.overlay": boxes,
                "pipeline.stage2_window": concurrency,
                "stage2.limit": concurrency,
            },
        )
        options = LiveOptions(live, policy, deadline, duration, until)
        job = options.job(clip, out, settings, resume=resume, keep_failed=keep_failed)
        if annotated and job.live is not None:
            raise ConfigError("--annotate is for files")
        if keep_failed and not resume:
            raise ConfigError("--keep-failed goes with --resume")
        console = Console()
        logging.basicConfig(level=logging.WARNING if console.is_terminal else logging.INFO, format=LOG_FORMAT)
        logging.getLogger("stamina").setLevel(logging.ERROR)  # its lines name neither stage nor reason
        results = asyncio.run(until_signalled(_run_job(job, settings, spawn=not no_spawn, annotated=annotated)))
        _tell(console, job, results)
    if results.state != "succeeded":
        raise typer.Exit(EXIT_PARTIAL)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn errors of the tree into one line on standard error and the documented exit code."""
    raise_again()
    try:
        yield
    except ZroactError as error:
        typer.echo(f"error: {error}", err=True)
        usage = isinstance(error, ConfigError | ResultsError)
        raise typer.Exit(EXIT_USAGE if usage else EXIT_FATAL) from error
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        typer.echo("interrupted; partial results are kept, go on with --resume", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from error


def main() -> None:
    """Entry point of the script."""
    app()


async def until_signalled(work: Coroutine[Any, Any, T]) -> T:
    """Do the work; SIGTERM cancels it as Ctrl-C does."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


async def _run_job(job: Job, config: Config, *, spawn: bool, annotated: bool) -> Results:
    _check(job, config)
    async with Supervisor(config, spawn=spawn) as supervisor:
        recorder = TimingRecorder() if job.live is None else TimingRecorder(LIVE_SPANS, keep_last=True)
        with _observer() as observer:
            results = await supervisor.run(run_pipeline(job, config, observer, recorder=recorder))
    stop = threading.Event()
    try:
        between = config.pipeline.overlay if annotated else None
        await asyncio.to_thread(draw, job, results, recorder, between=between, stop=stop)
    finally:
        stop.set()
    return results


def _check(job: Job, config: Config) -> None:
    """See what can be seen before daemons are started."""
    check_settings(config.pipeline)
    if job.live is None or job.live.is_paced:
        probe_video(job.source)
    Journal(job.out, resume=job.resume).close()


def draw(
    job: Job, results: Results, recorder: TimingRecorder, *, between: Between | None, stop: threading.Event
) -> None:
    """Write what is made of a run when its clock has stopped: the timelines, and the annotated video.

    `between` says where its boxes are between two keyframes; None leaves the video out.

    Raises:
        ResultsError: The timelines cannot be written.
        VideoError: The video cannot be annotated.
    """
    try:
        report.write_timeline(job.out, recorder.spans, job.trace.trace_id)
        report.draw_timeline(job.out, recorder.spans)
    except OSError as error:
        raise ResultsError(f"timeline in {job.out}: {error.strerror}") from error
    if between is not None:
        video, boxes, captions = job.out / VIDEO_NAME, boxes_of(results), captions_of(results)
        for warning in annotate(job.source, video, keyframes=boxes, captions=captions, between=between, stop=stop):
            logging.getLogger(__name__).warning("annotated video: %s", warning)


def boxes_of(results: Results) -> list[KeyframeOverlay]:
    """What Stage 1 found, keyframe by keyframe."""
    return [KeyframeOverlay(record.time_s, record.detections) for record in results.keyframes]


def captions_of(results: Results) -> list[Caption]:
    """Each slot's answer, from its first keyframe up to the next slot's first."""
    ends = [slot.start_s for slot in results.slots[1:]] + [float("inf")]
    return [Caption(slot.start_s, end, report.outcome_of(slot)) for slot, end in zip(results.slots, ends, strict=True)]


def _tell(console: Console, job: Job, results: Results) -> None:
    console.print(report.summary_table(results))
    files = [RESULTS_NAME, EVENTS_NAME, report.TRACE_NAME, report.PICTURE_NAME, VIDEO_NAME]
    for name in files:
        if (job.out / name).exists():
            console.print(f"{name}: {job.out / name}", highlight=False, soft_wrap=True)


@contextmanager
def _observer() -> Iterator[Observer | None]:
    """Progress bars on a terminal; elsewhere the log lines tell."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress)


class _Bars(Silent):
    """An observer that moves progress bars."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[Literal["frames", "keyframes", "slots"], TaskID] = {
            "frames": progress.add_task("frames", total=None),
            "keyframes": progress.add_task("Stage 1", total=None),
            "slots": progress.add_task("Stage 2", total=None),
        }

    def decoded(self, frames_grid: int, frames_expected: int | None) -> None:
        """So many grid frames are decoded."""
        self._progress.update(self._bars["frames"], completed=frames_grid, total=frames_expected)

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """A keyframe or a slot has its record."""
        self._progress.advance(self._bars["slots" if isinstance(record, SlotRecord) else "keyframes"])
