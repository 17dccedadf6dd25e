"""What becomes of a job that a worker takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline_ver2.config import Config, load_config
from serving.job_metrics import JobMetrics
from serving.jobs import DataDir
from serving.store import JobStore
from serving.worker import MAX_ATTEMPTS, Interrupted, Worker
from tests.serving.conftest import enter, write_locked

AWAY = {"stage1.port": 9, "stage2.port": 9, "pipeline.retry_for_s": 60.0}
PATIENCE_S = 30


@pytest.fixture
def config() -> Config:
    """Stages that are waited for and never come."""
    return load_config(None, AWAY, environ={})


@pytest.fixture
def worker(config: Config, store: JobStore, data: DataDir, metrics: JobMetrics) -> Iterator[Worker]:
    """A worker, whose processes end with the test."""
    working = Worker(config, store, data, metrics)
    yield working
    working.stop(PATIENCE_S)


@pytest.fixture
def impatient_worker(store: JobStore, data: DataDir, metrics: JobMetrics) -> Iterator[Worker]:
    """A worker that waits for no stage."""
    working = Worker(load_config(None, {**AWAY, "pipeline.retry_for_s": 0.0}, environ={}), store, data, metrics)
    yield working
    working.stop(PATIENCE_S)


def test_a_stage_that_stays_away_ends_the_job(
    impatient_worker: Worker, store: JobStore, data: DataDir, metrics: JobMetrics, clip: Path
) -> None:
    """As failed, with the reason, after the time it is waited for."""
    enter(data, store, "a", clip)
    impatient_worker.work("a")
    record = store.get("a")
    assert (record.state, record.attempts) == ("failed", 1)
    assert "stage_unreachable" in (record.error or "")
    assert metrics.registry.get_sample_value("zroact_jobs_ended_total", {"state": "failed"}) == 1
    assert metrics.registry.get_sample_value("zroact_job_queue_wait_seconds_count") == 1


def test_a_job_whose_files_are_gone_fails(worker: Worker, store: JobStore, data: DataDir, clip: Path) -> None:
    """With its folder or only its file missing; nothing is tried for ever."""
    for job_id in ("a", "b"):
        enter(data, store, job_id, clip)
    data.folder("a").job_file.unlink()
    data.folder("b").remove()
    for job_id in ("a", "b"):
        worker.work(job_id)
        assert store.get(job_id).state == "failed"


def test_a_job_that_ends_its_process_is_given_up(worker: Worker, store: JobStore, data: DataDir, clip: Path) -> None:
    """A video that kills whoever decodes it does not do so for ever."""
    enter(data, store, "a", clip)
    for _ in range(MAX_ATTEMPTS):
        store.start("a")
    worker.work("a")
    assert store.get("a").state == "failed"
    assert "given up" in (store.get("a").error or "")


def test_a_live_job_is_not_given_up(
    impatient_worker: Worker, store: JobStore, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may have been killed so often in a year: it is run, which ends it here for want of a stage."""
    monkeypatch.setattr("serving.worker._LIVE_PAUSE_S", 0)
    job = enter(data, store, "a", Path("camera"), live=True)
    job.model_copy(update={"address": "rtsp://127.0.0.1/"}).write(data.folder("a").job_file)
    for _ in range(MAX_ATTEMPTS):
        store.start("a")
    impatient_worker.work("a")
    assert store.get("a").state == "failed"
    assert (store.get("a").error or "").startswith("stage_unreachable")


@pytest.mark.fault("O9")
def test_a_cancelled_job_is_not_begun(worker: Worker, store: JobStore, data: DataDir, clip: Path) -> None:
    """Cancelled while it waited, or while the process that ran it was dead; its upload goes, the rest is kept."""
    enter(data, store, "waiting", clip)
    store.ask_cancel("waiting")
    enter(data, store, "orphan", clip)
    store.start("orphan")
    store.ask_cancel("orphan")
    data.folder("orphan").upload.write_bytes(b"x")
    for job_id in ("waiting", "orphan"):
        worker.work(job_id)
        assert store.get(job_id).state == "cancelled"
    assert not data.folder("orphan").upload.exists()
    assert data.folder("orphan").job_file.exists()


def test_an_ended_job_is_not_begun_again(worker: Worker, store: JobStore, data: DataDir, clip: Path) -> None:
    """Its end stays."""
    enter(data, store, "a", clip)
    store.end("a", "succeeded")
    worker.work("a")
    assert (store.get("a").state, store.get("a").attempts) == ("succeeded", 0)


@pytest.mark.fault("O9")
def test_a_running_job_is_cancelled(worker: Worker, store: JobStore, data: DataDir, clip: Path) -> None:
    """Also while it waits for a stage."""
    enter(data, store, "a", clip)
    thread = threading.Thread(target=worker.work, args=("a",))
    thread.start()
    while store.get("a").state != "running":
        threading.Event().wait(0.01)
    store.ask_cancel("a")
    thread.join(PATIENCE_S)
    assert store.get("a").state == "cancelled"


@pytest.mark.fault("O6")
def test_a_worker_that_stops_leaves_its_job_for_the_next(
    worker: Worker, store: JobStore, data: DataDir, clip: Path
) -> None:
    """What runs is put back without an attempt lost, what comes afterwards is not begun."""
    enter(data, store, "a", clip)
    ends: list[type[BaseException] | None] = []

    def work() -> None:
        try:
            worker.work("a")
            ends.append(None)
        except Interrupted as end:
            ends.append(type(end))

    thread = threading.Thread(target=work)
    thread.start()
    while store.get("a").state != "running":
        threading.Event().wait(0.01)
    worker.stop(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert ends == [Interrupted]
    assert (store.get("a").state, store.get("a").attempts) == ("queued", 0)
    with pytest.raises(Interrupted):
        worker.work("a")


def test_a_job_that_runs_elsewhere_is_waited_for(worker: Worker, store: JobStore, data: DataDir, clip: Path) -> None:
    """Two processes with one job do not run it twice; when the other one has ended it, it has ended."""
    enter(data, store, "a", clip)
    with data.folder("a").held():
        thread = threading.Thread(target=worker.work, args=("a",))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert store.get("a").state == "queued"
        store.end("a", "succeeded")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert store.get("a").state == "succeeded"


@pytest.mark.fault("O5")
def test_an_end_waits_for_the_database(
    config: Config, data: DataDir, metrics: JobMetrics, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose end cannot be written down now is not lost: it has ended as soon as it can."""
    monkeypatch.setattr("serving.store._LOCK_WAIT_S", 0)
    impatient = JobStore(data.database_url)
    enter(data, impatient, "a", clip)
    data.folder("a").remove()
    thread = threading.Thread(target=Worker(config, impatient, data, metrics).work, args=("a",))
    with write_locked(data):
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
    thread.join(PATIENCE_S)
    assert impatient.get("a").state == "failed"
    impatient.close()


@pytest.mark.fault("O6")
def test_a_worker_stops_without_its_database(
    config: Config, data: DataDir, metrics: JobMetrics, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to stop, it does not wait for the database; what it runs goes on at the next start."""
    monkeypatch.setattr("serving.store._LOCK_WAIT_S", 0)
    impatient = JobStore(data.database_url)
    enter(data, impatient, "a", clip)
    worker, ends = Worker(config, impatient, data, metrics), list[type[BaseException]]()

    def work() -> None:
        try:
            worker.work("a")
        except Interrupted as end:
            ends.append(type(end))

    thread = threading.Thread(target=work)
    thread.start()
    while impatient.get("a").state != "running":
        threading.Event().wait(0.01)
    with write_locked(data):
        worker.stop(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert (ends, impatient.get("a").state) == ([Interrupted], "running")
    impatient.close()


def test_a_process_that_cannot_be_started(
    worker: Worker, store: JobStore, data: DataDir, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried a few times, then the job has failed; it is not left lying."""
    monkeypatch.setattr("serving.job_process._COMMAND", ("/nowhere/python",))
    monkeypatch.setattr("serving.worker._PAUSE_S", 0)
    enter(data, store, "a", clip)
    worker.work("a")
    assert (store.get("a").state, store.get("a").attempts) == ("failed", MAX_ATTEMPTS + 1)
