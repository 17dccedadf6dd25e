"""The durable queue: real DBOS on SQLite."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from pipeline_ver2.errors import ConfigError
from serving.durability import DurableQueue
from serving.jobs import DataDir
from serving.worker import Interrupted

PATIENCE_S = 30


@contextmanager
def opened(
    data: DataDir, work: Callable[[str], None], executor: str = "one", adopted: Sequence[str] = ()
) -> Iterator[DurableQueue]:
    """A queue that runs jobs here until the block ends."""
    durable = DurableQueue(data.database_url, executor=executor, jobs_at_once=1, work=work)
    durable.open(adopted)
    try:
        yield durable
    finally:
        durable.close()


class Told:
    """Notes which jobs were run; one of them is interrupted."""

    def __init__(self, interrupted: str = "") -> None:
        self.interrupted = interrupted
        self.jobs = queue.Queue[str]()

    def work(self, job_id: str) -> None:
        """Note a job."""
        self.jobs.put(job_id)
        if job_id == self.interrupted:
            raise Interrupted

    def next(self) -> str:
        """The next job that was run."""
        return self.jobs.get(timeout=PATIENCE_S)


@pytest.mark.slow
def test_a_job_is_run_once_and_goes_on_after_an_interruption(data: DataDir) -> None:
    """Put twice it runs once; interrupted it goes on at the next start; ended, only once it is forgotten."""
    first = Told("b")
    with opened(data, first.work) as durable:
        for job_id in ("a", "a", "b"):
            durable.put(job_id)
        assert [first.next(), first.next()] == ["a", "b"]
    second = Told()
    with opened(data, second.work) as durable:
        assert second.next() == "b"
        for job_id in ("a", "b", "c"):
            durable.put(job_id)
        assert second.next() == "c"
        assert second.jobs.empty()
        durable.forget("a")
        durable.put("a")
        assert second.next() == "a"


@pytest.mark.slow
def test_jobs_of_a_dead_executor_are_adopted(data: DataDir, caplog: pytest.LogCaptureFixture) -> None:
    """Under another name they are only run if they are asked for; a name without jobs is told, with those that have."""
    first, second, third = Told("a"), Told(), Told()
    with opened(data, first.work) as durable:
        durable.put("a")
        assert first.next() == "a"
    with opened(data, second.work, "two") as durable:
        durable.put("b")
        assert second.next() == "b"
        assert second.jobs.empty()
    with opened(data, third.work, "three", ["oen", "one"]):
        assert third.next() == "a"
    assert "oen has left no unfinished job; others that have: one" in caplog.messages


@pytest.mark.slow
def test_no_more_at_once_than_allowed(data: DataDir) -> None:
    """The second job begins when the first has ended."""
    begun, release = queue.Queue[str](), threading.Event()

    def work(job_id: str) -> None:
        begun.put(job_id)
        release.wait(PATIENCE_S)

    with opened(data, work) as durable:
        for job_id in ("a", "b"):
            durable.put(job_id)
        assert begun.get(timeout=PATIENCE_S) == "a"
        with pytest.raises(queue.Empty):
            begun.get(timeout=1.5)
        release.set()
        assert begun.get(timeout=PATIENCE_S) == "b"


def test_a_queue_that_is_not_open(data: DataDir) -> None:
    """Nothing is lost in it."""
    durable = DurableQueue(data.database_url, executor="one", jobs_at_once=1, work=Told().work)
    with pytest.raises(RuntimeError, match="not open"):
        durable.put("a")


def test_a_database_that_cannot_be_opened(data: DataDir) -> None:
    """The key is named."""
    durable = DurableQueue("sqlite:////missing/q.sqlite", executor="one", jobs_at_once=1, work=Told().work)
    with pytest.raises(ConfigError, match=r"serving\.database_url"):
        durable.open()


@pytest.mark.slow
def test_jobs_of_another_version_wait_for_it(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named, not run and not lost; what is put meanwhile is run."""
    first, second, third = Told("a"), Told(), Told()
    monkeypatch.setattr("serving.durability._VERSION", "0")
    with opened(data, first.work) as durable:
        durable.put("a")
        assert first.next() == "a"
    monkeypatch.setattr("serving.durability._VERSION", "1")
    with opened(data, second.work) as durable:
        for job_id in ("a", "b"):
            durable.put(job_id)
        assert second.next() == "b"
        assert second.jobs.empty()
        assert durable.foreign() == ["a"]
    monkeypatch.setattr("serving.durability._VERSION", "0")
    with opened(data, third.work) as durable:
        assert third.next() == "a"
        assert durable.foreign() == []
