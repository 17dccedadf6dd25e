"""The durable queue, by DBOS: a job that was put into it runs once to its end, whatever ends the processes meanwhile.

The workflow is thin, one call without steps: what is done already is in the job's folder, and DBOS only has to see to
it that somebody goes on. A workflow's id is the job's, so that a job put twice is queued once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from dbos import DBOS, DBOSConfig, SetWorkflowID
from sqlalchemy.exc import SQLAlchemyError

from pipeline_ver2.errors import ConfigError

log = logging.getLogger(__name__)

QUEUE_NAME = "jobs"
POLL_S = 0.5

_APPLICATION = "zroact"
_WORKFLOW = "run_job"
# Of the workflow, not of the program: a job queued before an upgrade is run after it.
_VERSION = "1"


class Queue(Protocol):
    """Where jobs wait to be run."""

    def put(self, job_id: str) -> None:
        """Queue a job, once; blocks."""


class DurableQueue:
    """DBOS in this process; there can be one at a time. Its methods block.

    Args:
        url: SQLAlchemy URL of the database.
        executor: Name of this process; whoever starts under it again goes on with its jobs.
        jobs_at_once: How many jobs run here at a time.
        work: Runs a job, in a thread of its own.
    """

    def __init__(self, url: str, *, executor: str, jobs_at_once: int, work: Callable[[str], None]) -> None:
        self._url = url
        self._executor = executor
        self._jobs_at_once = jobs_at_once
        self._work = work
        self._workflow: Callable[[str], None] | None = None

    def open(self, adopted: Sequence[str] = ()) -> None:
        """Go on with the jobs of this executor and of `adopted` ones, which must be dead, then take new ones.

        Raises:
            ConfigError: The database cannot be used.
        """
        # With a handler of its own DBOS would write to the console in a form of its own.
        logger = logging.getLogger("dbos")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        settings: DBOSConfig = {
            "name": _APPLICATION,
            "system_database_url": self._url,
            "application_version": _VERSION,
            "executor_id": self._executor,
            "log_level": "ERROR",
            "notification_listener_polling_interval_sec": POLL_S,
        }
        DBOS(config=settings)

        def run(job_id: str) -> None:  # DBOS marks what it takes, and a method cannot be marked
            self._work(job_id)

        self._workflow = DBOS.workflow(name=_WORKFLOW, max_recovery_attempts=None)(run)
        try:
            DBOS.launch()
            DBOS.register_queue(
                QUEUE_NAME,
                worker_concurrency=self._jobs_at_once,
                polling_interval_sec=POLL_S,
                on_conflict="always_update",
            )
            for name in adopted:
                self._adopt(name)
        except SQLAlchemyError as error:
            self.close()
            raise ConfigError(f"serving.database_url: the queue cannot be opened ({type(error).__name__})") from error

    def put(self, job_id: str) -> None:
        """Queue a job; one that was queued before, even by another process, is not queued again."""
        if self._workflow is None:
            raise RuntimeError("the queue is not open")
        with SetWorkflowID(job_id):
            DBOS.enqueue_workflow(QUEUE_NAME, self._workflow, job_id)

    def foreign(self) -> list[str]:
        """Ids of jobs that were begun or queued by another version of the workflow, which alone can run them."""
        waiting = DBOS.list_workflows(
            name=_WORKFLOW, status=["ENQUEUED", "PENDING"], load_input=False, load_output=False
        )
        return [each.workflow_id for each in waiting if each.app_version != _VERSION]

    def _adopt(self, executor: str) -> None:
        """Take over what a dead executor has left; say so if that is nothing, since names can be mistyped."""
        if count := len(DBOS._recover_pending_workflows([executor])):
            log.info("%d unfinished job(s) of %s are taken over", count, executor)
            return
        unfinished = DBOS.list_workflows(name=_WORKFLOW, status="PENDING", load_input=False, load_output=False)
        others = sorted({str(each.executor_id) for each in unfinished} - {self._executor})
        log.warning("%s has left no unfinished job; others that have: %s", executor, ", ".join(others) or "none")

    def forget(self, job_id: str) -> None:
        """Let go of what is kept of a job that has ended."""
        DBOS.delete_workflow(job_id)

    def close(self) -> None:
        """Take no more jobs; those that run must have stopped."""
        self._workflow = None
        DBOS.destroy(destroy_registry=True)
