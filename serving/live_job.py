"""A job that follows a live source: when it goes on it connects again, and its records go on in a file of their own."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pipeline_ver2.config import Config
from pipeline_ver2.errors import ResultsError, SourceLost
from pipeline_ver2.job import Job, Observer
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import JOURNAL_NAME, Results
from serving.jobs import JobFile, JobFolder
from serving.live_gate import LiveGate

log = logging.getLogger(__name__)


async def follow_source(
    job: JobFile, folder: JobFolder, run: Job, config: Config, observer: Observer, recorder: TimingRecorder
) -> Results:
    """Follow the source of a job until it is over; one that was there once is waited for.

    Args:
        job: What was asked for, with the address of a live source.
        folder: Where it runs.
        run: The run as that of a file would be.
        config: The configuration.
        observer: Is told of progress.
        recorder: Takes the spans of the run.

    Raises:
        SourceLost: The source was never there, or its time was over before it came back.
        ZroactError: As `run_pipeline`.
    """
    live, noted = job.live(config), await asyncio.to_thread(_note_end, job, folder)
    while True:
        # Requests of another run must not look like those of the one before, whose answers the stages may still have.
        now = replace(run, job_id=uuid.uuid4().hex[:12], live=live, allow=LiveGate(config.serving))
        try:
            return await run_pipeline(now, config, observer, recorder=recorder)
        except SourceLost as error:
            if noted.is_late or not (folder.path / JOURNAL_NAME).exists():
                raise
            log.warning("job %s: not there yet: %s", job.id, error)
        await asyncio.sleep(config.live.reconnect.max_wait_s)
        live = noted.live(config)


def _note_end(job: JobFile, folder: JobFolder) -> JobFile:
    """Write down when it ends, so that its time does not begin anew when it goes on."""
    if job.options.duration_s is None or job.until is not None:
        return job
    until = datetime.now(UTC) + timedelta(seconds=job.options.duration_s)
    noted = job.model_copy(update={"until": until})
    try:
        noted.write(folder.job_file)
    except OSError as error:
        raise ResultsError(f"{folder.job_file}: {error.strerror}") from error
    return noted
