"""The engine of a single job: `python -m serving.run_job JOB.json`, and what workers of the queue call.

The job runs in the folder its file lies in, against stages that are up, and goes on with what it finds there.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pipeline_ver2.command import (
    EXIT_FATAL,
    EXIT_INTERRUPTED,
    EXIT_PARTIAL,
    EXIT_USAGE,
    LIVE_SPANS,
    LOG_FORMAT,
    draw,
)
from pipeline_ver2.config import Config, load_config
from pipeline_ver2.errors import ConfigError, FolderInUse, ResultsError, VideoError, VideoOverLimits, ZroactError
from pipeline_ver2.job import Job
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import RunState
from pipeline_ver2.telemetry import export_trace
from pipeline_ver2.trace_context import TraceContext
from serving.jobs import JobFile, JobFolder
from serving.live_job import follow_source
from serving.progress import Progress, ProgressCounter, read_progress

log = logging.getLogger(__name__)

LOOK_S = 0.4
"""How often a running job looks whether it is to stop."""

StopReason = Literal["cancelled", "interrupted"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended; `interrupted` is no end: it goes on where it was when it is run again."""

    state: RunState | Literal["interrupted"]
    error: str | None = None


async def run_job(
    job: JobFile, folder: JobFolder, config: Config, why_stop: Callable[[], StopReason | None]
) -> Outcome:
    """Run a job, or what is left of it; whatever goes wrong with it is its outcome.

    Args:
        job: What was asked for.
        folder: Where it runs.
        config: The configuration.
        why_stop: Asked every `LOOK_S`, in a thread: whether the job is to stop.

    Raises:
        FolderInUse: Another process runs it.
    """
    recorder = TimingRecorder() if job.address is None else TimingRecorder(LIVE_SPANS, keep_last=True)
    trace = job.trace or TraceContext.new()
    with folder.held():
        log.info("job %s runs, trace %s", job.id, trace.trace_id)
        outcome = await _outcome(job, folder, config, recorder, trace, why_stop)
        if outcome.state != "interrupted":
            told = partial(export_trace, job_id=job.id, state=outcome.state, error=outcome.error)
            await asyncio.to_thread(told, config.telemetry, trace, recorder)
        return outcome


async def _outcome(
    job: JobFile,
    folder: JobFolder,
    config: Config,
    recorder: TimingRecorder,
    trace: TraceContext,
    why_stop: Callable[[], StopReason | None],
) -> Outcome:
    # A file is seen from its beginning when its job goes on, a live source is not.
    before = Progress() if job.address is None else await asyncio.to_thread(read_progress, folder)
    counter = ProgressCounter(folder.progress, before)
    settings = job.options.apply(config)
    work = asyncio.create_task(_work(job, folder, settings, counter, recorder, trace))
    try:
        longest_s = config.serving.limits.seconds if job.address is None else math.inf
        reason = await _look_after(work, counter, settings, longest_s, why_stop)
        return work.result() if reason is None else Outcome(reason)
    except FolderInUse:
        raise
    except ZroactError as error:
        log.warning("job %s failed: %s: %s", job.id, error.code, error)
        return Outcome("failed", f"{error.code}: {error}")
    finally:
        work.cancel()
        await asyncio.wait([work])


async def _work(
    job: JobFile,
    folder: JobFolder,
    config: Config,
    counter: ProgressCounter,
    recorder: TimingRecorder,
    trace: TraceContext,
) -> Outcome:
    if job.is_late:
        return Outcome("partial", "its time was over while it did not run")
    # A slot that failed has failed: a job is not a second try, but the rest of the first.
    run = Job(job.source, folder.path, resume=True, keep_failed=True, stream=job.id, job_id=job.id, trace=trace)
    if job.address is None:
        results = await run_pipeline(run, config, counter, recorder=recorder)
    else:
        results = await follow_source(job, folder, run, config, counter, recorder)
    stop = threading.Event()
    try:
        between = config.pipeline.overlay if job.options.annotate and job.address is None else None
        await asyncio.to_thread(draw, run, results, recorder, between=between, stop=stop)
    except (ResultsError, VideoError) as error:  # there are results all the same
        log.warning("job %s: no pictures: %s", job.id, error)
        return Outcome(results.state, f"{error.code}: {error}")
    finally:
        stop.set()
    return Outcome(results.state, results.error)


async def _look_after(
    work: asyncio.Task[Outcome],
    counter: ProgressCounter,
    config: Config,
    longest_s: float,
    why_stop: Callable[[], StopReason | None],
) -> StopReason | None:
    """Write progress down and look whether to stop, until the work is done or has been stopped; the reason if it was.

    Raises:
        VideoOverLimits: The video goes on for longer than it may.
    """
    most_frames = longest_s * (config.pipeline.grid_fps or config.serving.limits.fps)
    while True:
        done, _ = await asyncio.wait([work], timeout=LOOK_S)
        await asyncio.to_thread(counter.write)
        if done:
            return None
        if counter.frames > most_frames:
            raise VideoOverLimits(f"the video is longer than {longest_s:g} s (serving.limits.seconds)")
        reason = await asyncio.to_thread(why_stop)
        if reason is not None:
            work.cancel()
            await asyncio.wait([work])
            return reason


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job file without a queue; SIGINT and SIGTERM interrupt it, and it can be run again.

    Returns:
        Exit code, as `zroact run`.
    """
    parser = argparse.ArgumentParser(prog="serving.run_job", description="Run one job in the folder of its file.")
    parser.add_argument("job", type=Path, help="job.json")
    parser.add_argument("--config", type=Path, help="configuration file (default: as everywhere)")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    try:
        config, job = load_config(arguments.config), JobFile.read(arguments.job)
        folder = JobFolder(arguments.job.parent)
        outcome = asyncio.run(run_job(job, folder, config, lambda: "interrupted" if told.is_set() else None))
    except (ConfigError, ResultsError) as error:
        log.error("%s", error)  # noqa: TRY400 - the message is for the user, a traceback would hide it
        return EXIT_USAGE
    sys.stdout.write(f"{outcome.state}{f': {outcome.error}' if outcome.error else ''}\n")
    codes = {"succeeded": 0, "partial": EXIT_PARTIAL, "interrupted": EXIT_INTERRUPTED}
    return codes.get(outcome.state, EXIT_FATAL)


if __name__ == "__main__":
    sys.exit(main())
