"""Takes jobs of the queue, each in a thread, to a process that runs it, until they end or this process is to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from pipeline_ver2.config import Config
from pipeline_ver2.errors import DatabaseAway, FolderInUse, ResultsError
from pipeline_ver2.results import Results, read_results
from serving.job_metrics import JobMetrics
from serving.job_process import JobProcesses
from serving.jobs import DataDir, JobState
from serving.run_job import Outcome, StopReason
from serving.store import JobStore

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
"""A job whose process has ended that often without a word is not tried again; that of a live source, after a while."""

_PAUSE_S = 1.0
_LIVE_PAUSE_S = 10.0

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
        self._processes = JobProcesses(config)
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
            while not self._attempt(job_id):
                pass
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
        self._processes.close()

    def _attempt(self, job_id: str) -> bool:
        """Whether that was its end."""
        try:
            with self._data.folder(job_id).held():
                record = self._patiently(lambda: self._store.start(job_id))
            if record is None:
                self._end(job_id, "cancelled")  # if it has ended in another way, that stays
                return True
            if record.attempts > MAX_ATTEMPTS:
                if not record.options.live:
                    self._end(job_id, "failed", f"given up: the process that ran it ended {MAX_ATTEMPTS} times")
                    return True
                self._pause(_LIVE_PAUSE_S)  # it may have run for months between them
            self._metrics.started(record)
            log.info("job %s starts, attempt %d", job_id, record.attempts)
            outcome = self._run(job_id)
        except FolderInUse:  # somebody else runs it: see what comes of it
            self._pause()
            return False
        except ResultsError as error:
            outcome = Outcome("failed", f"{error.code}: {error}")
        if outcome is None:
            log.warning("job %s: its process has ended without a word", job_id)
            return False
        if outcome.state == "interrupted":
            self._release(job_id)
            raise Interrupted
        self._end(job_id, outcome.state, outcome.error)
        return True

    def _run(self, job_id: str) -> Outcome | None:
        try:
            with self._processes.one() as process:
                return process.run(self._data.folder(job_id), lambda: self._why_stop(job_id))
        except OSError as error:
            log.warning("job %s: no process for it: %s", job_id, error)
            self._pause()
            return None

    def _why_stop(self, job_id: str) -> StopReason | None:
        try:
            if self._store.is_cancel_asked(job_id):
                return "cancelled"
        except DatabaseAway:
            pass  # nobody can ask for a cancel now either; the job goes on
        return "interrupted" if self._stopping.is_set() else None

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask the database, which may be away for a while: what has been worked out is not lost for that.

        Raises:
            Interrupted: The process is to stop.
        """
        while True:
            try:
                return ask()
            except DatabaseAway as error:
                log.warning("%s; asking again in %g s", error, _PAUSE_S)
                self._pause()

    def _pause(self, wait_s: float | None = None) -> None:
        if self._stopping.wait(_PAUSE_S if wait_s is None else wait_s):
            raise Interrupted

    def _release(self, job_id: str) -> None:
        try:
            self._store.release(job_id)
        except DatabaseAway as error:  # the job goes on all the same, one attempt poorer
            log.warning("job %s: %s", job_id, error)

    def _results(self, job_id: str) -> Results | None:
        try:
            return read_results(self._data.folder(job_id).path)
        except ResultsError:  # it ended before there were any
            return None

    def _end(self, job_id: str, state: JobState, error: str | None = None) -> None:
        if self._patiently(lambda: self._store.end(job_id, state, error)):
            log.info("job %s ended: %s%s", job_id, state, f" ({error})" if error else "")
            self._metrics.ended(state, self._results(job_id))
        if state == "cancelled":
            self._data.folder(job_id).upload.unlink(missing_ok=True)
