"""The table of jobs."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from pipeline_ver2.errors import ConfigError, DatabaseAway, UnknownJob
from serving.jobs import DataDir, JobOptions, JobState
from serving.store import JobStore
from tests.serving.conftest import write_locked

OPTIONS = JobOptions(gate="detections")


def add(store: JobStore, *ids: str) -> None:
    """Queue jobs of these ids."""
    for job_id in ids:
        store.insert(job_id, f"{job_id}.mp4", OPTIONS, None)


def test_a_job_comes_back_as_it_was_entered(store: JobStore, data: DataDir) -> None:
    """Also after the process that entered it."""
    record = store.insert("a", "ä '%05d'.mp4", OPTIONS, None)
    assert (record.state, record.attempts, record.options, record.name) == ("queued", 0, OPTIONS, "ä '%05d'.mp4")
    second = JobStore(data.database_url)
    assert second.get("a") == record
    second.close()


def test_an_empty_table(store: JobStore) -> None:
    """No jobs are no error; one that is asked for by name is."""
    assert (store.page(state=None, limit=5, before=None), store.counts(), store.open_ids()) == ([], {}, [])
    with pytest.raises(UnknownJob, match="'a'"):
        store.get("a")
    with pytest.raises(UnknownJob):
        store.ask_cancel("a")
    assert store.start("a") is None
    with pytest.raises(UnknownJob):
        store.get("a\0")


def test_a_table_of_an_earlier_version(data: DataDir) -> None:
    """What was added to it since is added when it is opened, and its jobs are kept."""
    first = JobStore(data.database_url)
    first.insert("a", "a", OPTIONS, "key")
    first.close()
    with closing(sqlite3.connect(data.database_url.removeprefix("sqlite:///"))) as plain:
        plain.execute("ALTER TABLE zroact_jobs DROP COLUMN request_hash")
        plain.execute("ALTER TABLE zroact_jobs DROP COLUMN trace_id")
    later = JobStore(data.database_url)
    assert later.get("a").trace_id is None
    assert later.repeated("key", "any") == later.get("a")
    assert later.insert("b", "b", OPTIONS, None, trace_id="0af7").trace_id == "0af7"
    later.close()


def test_a_key_has_one_job(store: JobStore) -> None:
    """Many requests with one key at the same time make one job; jobs without keys are many."""
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda number: store.insert(f"job-{number}", "a", OPTIONS, "key").id, range(8)))
    assert len(found) == 1
    assert store.repeated("key", None) == store.get(*found)
    assert store.repeated("other", None) is None
    add(store, "x", "y")
    assert store.counts() == {"queued": 3}


def test_pages_go_from_new_to_old_without_gaps(store: JobStore) -> None:
    """Each page begins behind the one before, whatever comes in between."""
    add(store, *"abcde")
    first = store.page(state=None, limit=2, before=None)
    add(store, "f")
    last = first[-1]
    second = store.page(state=None, limit=9, before=(last.created_at.timestamp(), last.id))
    assert [record.id for record in (*first, *second)] == list("edcba")


def test_pages_of_one_state(store: JobStore) -> None:
    """Only those."""
    add(store, *"abc")
    store.end("b", "failed", "why")
    failed = store.page(state="failed", limit=9, before=None)
    assert [(record.id, record.error) for record in failed] == [("b", "why")]


def test_starting_counts_attempts(store: JobStore) -> None:
    """The first start has its time; a job that is run again keeps it; a process told to stop gives its attempt back."""
    add(store, "a")
    first = store.start("a")
    assert first is not None
    again = store.start("a")
    assert again is not None
    assert (again.state, again.attempts, again.started_at) == ("running", 2, first.started_at)
    store.release("a")
    assert (store.get("a").state, store.get("a").attempts) == ("queued", 1)


@pytest.mark.fault("O9")
def test_cancelling_a_queued_job_ends_it(store: JobStore) -> None:
    """At once, and nobody can start it afterwards."""
    add(store, "a")
    assert store.ask_cancel("a").state == "cancelled"
    assert store.start("a") is None
    with pytest.raises(UnknownJob):
        store.get("a\0")
    assert store.get("a").ended_at is not None


@pytest.mark.fault("O9")
def test_cancelling_a_running_job_waits_for_its_worker(store: JobStore) -> None:
    """It is asked to end, is not started again, and ends when its worker says so."""
    add(store, "a")
    store.start("a")
    assert store.ask_cancel("a").state == "running"
    assert store.is_cancel_asked("a")
    assert store.start("a") is None
    with pytest.raises(UnknownJob):
        store.get("a\0")
    assert store.end("a", "cancelled")
    assert store.get("a").state == "cancelled"


@pytest.mark.fault("O9")
@pytest.mark.parametrize("state", ["succeeded", "partial", "failed", "cancelled"])
def test_an_ended_job_stays_as_it_is(store: JobStore, state: JobState) -> None:
    """Neither a cancel nor a second end changes it."""
    add(store, "a")
    store.end("a", state)
    record = store.get("a")
    assert store.ask_cancel("a") == record
    assert not store.end("a", "failed", "late")
    assert store.get("a") == record


def test_a_job_that_is_gone_is_to_end(store: JobStore) -> None:
    """Whoever still runs it stops."""
    assert store.is_cancel_asked("gone")


def test_only_ended_jobs_are_forgotten(store: JobStore) -> None:
    """One that runs cannot be deleted."""
    add(store, "a", "b")
    store.end("a", "failed")
    for job_id in ("a", "b"):
        store.delete(job_id)
    assert store.open_ids() == ["b"]
    assert store.ended() == []


@pytest.mark.parametrize("url", ["nonsense", "sqlite:////missing/folder/jobs.sqlite", "magic://user:secret@host/db"])
def test_a_database_that_cannot_be_used(url: str, tmp_path: Path) -> None:
    """The key is named; a password in the URL is not shown."""
    with pytest.raises(ConfigError, match=r"serving\.database_url") as caught:
        JobStore(url)
    assert "secret" not in str(caught.value)


def test_a_database_that_takes_nothing_is_away(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that somebody else has locked for too long: an error of ours that says it may be tried again."""
    monkeypatch.setattr("serving.store._LOCK_WAIT_S", 0)
    impatient = JobStore(data.database_url)
    add(impatient, "a")
    with write_locked(data), pytest.raises(DatabaseAway, match="does not answer"):
        impatient.end("a", "failed")
    assert impatient.end("a", "succeeded")
    impatient.close()
