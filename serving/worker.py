"""Runs jobs of the queue, each in a thread with an event loop of its own, until they end or the process is to stop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from pipeline_ver2.config import Config
from pipeline_ver2.errors import DatabaseAway, FolderInUse, ResultsError
from serving.job_metrics import JobMetrics
from serving.jobs import DataDir, JobFile, JobState
from serving.run_job import Outcome, StopReason, run_job
from serving.store import JobStore

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
"""A job that has ended the process that often without a word is not tried again."""

_BUSY_PAUSE_S = 1.0

T = TypeVar("T")


class Interrupted(BaseException):
    """The process is to stop; the job stays where it is. No `Exception`, so that nothing takes it for a result."""


class Worker:
    """Takes a job from its id to its end.

    Args:
        config: The configuration.
        store: The table of jobs.
        data: Where jobs have their folders.
        metrics: Is told of starts and ends.
    """

    def __init__(self, config: Config, store: JobStore, data: DataDir, metrics: JobMetrics) -> None:
        self._config = config
        self._store = store
        self._data = data
        self._metrics = metrics
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self._running = 0

    def work(self, job_id: str) -> None:
        """Run a job to its end; blocks.

        Raises:
            Interrupted: The process is to stop.
        """
        with self._idle:
            if self._stopping.is_set():
                raise Interrupted
            self._running += 1
        try:
            asyncio.run(self._work(job_id))
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def stop(self, within_s: float) -> None:
        """Interrupt what runs, begin nothing more, and wait until it has stopped, a bounded time; blocks."""
        self._stopping.set()
        give_up_at = time.monotonic() + within_s
        with self._idle:
            self._idle.wait_for(lambda: not self._running, max(0.0, give_up_at - time.monotonic()))
            if self._running:
                log.warning("%d job(s) did not stop within %g s", self._running, within_s)

    async def _work(self, job_id: str) -> None:
        while True:
            try:
                return await self._attempt(job_id)
            except FolderInUse:  # somebody else runs it: see what comes of it
                if await asyncio.to_thread(self._stopping.wait, _BUSY_PAUSE_S):
                    raise Interrupted from None

    async def _attempt(self, job_id: str) -> None:
        try:
            with self._data.folder(job_id).held():
                record = await self._patiently(lambda: self._store.start(job_id))
        except FolderInUse:
            raise
        except ResultsError as error:
            await self._end(job_id, "failed", f"{error.code}: {error}")
            return
        if record is None:
            await self._end(job_id, "cancelled")  # if it has ended in another way, that stays
            return
        if record.attempts > MAX_ATTEMPTS:
            await self._end(job_id, "failed", f"given up: the process that ran it ended {MAX_ATTEMPTS} times")
            return
        self._metrics.started(record)
        log.info("job %s starts, attempt %d", job_id, record.attempts)
        outcome = await self._run(job_id)
        if outcome.state == "interrupted":
            self._release(job_id)
            raise Interrupted
        await self._end(job_id, outcome.state, outcome.error)

    async def _run(self, job_id: str) -> Outcome:
        folder = self._data.folder(job_id)
        try:
            job = JobFile.read(folder.job_file)
            return await run_job(job, folder, self._config, lambda: self._why_stop(job_id))
        except FolderInUse:
            raise
        except ResultsError as error:
            return Outcome("failed", f"{error.code}: {error}")
        except Exception:
            log.exception("job %s ended by a defect of this program", job_id)
            return Outcome("failed", "internal: the log says more")

    def _why_stop(self, job_id: str) -> StopReason | None:
        try:
            if self._store.is_cancel_asked(job_id):
                return "cancelled"
        except DatabaseAway:
            pass  # nobody can ask for a cancel now either; the job goes on
        return "interrupted" if self._stopping.is_set() else None

    async def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask the database, which may be away for a while: what has been worked out is not lost for that.

        Raises:
            Interrupted: The process is to stop.
        """
        while True:
            try:
                return await asyncio.to_thread(ask)
            except DatabaseAway as error:
                log.warning("%s; asking again in %g s", error, _BUSY_PAUSE_S)
                if await asyncio.to_thread(self._stopping.wait, _BUSY_PAUSE_S):
                    raise Interrupted from error

    def _release(self, job_id: str) -> None:
        try:
            self._store.release(job_id)
        except DatabaseAway as error:  # the job goes on all the same, one attempt poorer
            log.warning("job %s: %s", job_id, error)

    async def _end(self, job_id: str, state: JobState, error: str | None = None) -> None:
        if await self._patiently(lambda: self._store.end(job_id, state, error)):
            log.info("job %s ended: %s%s", job_id, state, f" ({error})" if error else "")
            self._metrics.ended(state)
        if state == "cancelled":
            self._data.folder(job_id).upload.unlink(missing_ok=True)
