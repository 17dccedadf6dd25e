"""Jobs that are cancelled, whose files are damaged, or whose disk is full, while a worker runs them."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from pipeline_ver2.results import JOURNAL_NAME, RESULTS_NAME, read_results
from serving.job_metrics import JobMetrics
from serving.jobs import DataDir, JobFile, JobFolder
from serving.run_job import Outcome, run_job
from serving.store import JobStore
from serving.worker import Worker
from tests.job_processes import job_processes_of
from tests.pipeline_ver2.conftest import settings_for
from tests.serving.conftest import enter
from tests.stand_ins import Stages, behave, hang, refusal, reset, stand_ins
from tests.videos import lavfi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE_S = 60
GENEROUS_S = 20
"""What is promised is 2 s; a machine that does other things meanwhile may take longer."""


@pytest.fixture
async def stages() -> AsyncIterator[Stages]:
    """Both scripted stages."""
    async with stand_ins() as both:
        yield both


@pytest.fixture
def worker(stages: Stages, store: JobStore, data: DataDir, metrics: JobMetrics) -> Iterator[Worker]:
    """A worker on them."""
    made = Worker(settings_for(stages, pipeline__retry_for_s=60.0), store, data, metrics)
    yield made
    made.stop(PATIENCE_S)


async def refuse(_request: web.Request, _key: str, _time: int) -> web.Response:
    """A rule: busy for ever."""
    return refusal(429, "queue_full", retry_after_s=1)


async def drop(request: web.Request, _key: str, _time: int) -> None:
    """A rule: dead before the reply, and unreachable from then on."""
    reset(request)


@pytest.mark.fault("O9")
async def test_jobs_are_cancelled_in_any_phase(
    worker: Worker, store: JobStore, data: DataDir, stages: Stages, clip: Path
) -> None:
    """At once and once; the upload goes, the folder is free, and the place is taken by the next job."""
    for name, rule in (("stage1", hang), ("stage1", refuse), ("stage2", hang), ("stage2", refuse), ("stage2", drop)):
        behaving(stages)
        stage, job_id = getattr(stages, name), f"{name}-{rule.__name__}"
        stage.rule, stage.unready = rule, 10**6 if rule is drop else None
        enter(data, store, job_id, clip, annotate=False)
        data.folder(job_id).upload.write_bytes(b"video")
        running = asyncio.create_task(asyncio.to_thread(worker.work, job_id))
        await until(partial(bool, stage.seen))
        assert await cancelled_within(store, job_id) < GENEROUS_S
        await running
        assert store.ask_cancel(job_id).state == "cancelled"
        assert not data.folder(job_id).upload.exists()
        with data.folder(job_id).held():
            pass
    behaving(stages)
    enter(data, store, "next", clip, annotate=False)
    await asyncio.to_thread(worker.work, "next")
    assert store.get("next").state == "succeeded"


@pytest.mark.fault("O9")
async def test_a_job_is_cancelled_while_its_video_is_drawn(worker: Worker, store: JobStore, data: DataDir) -> None:
    """All answers are there; what is drawn of them is given up."""
    long = lavfi("long.mp4", "testsrc=s=640x360:r=30:d=12", "-preset", "ultrafast", "-pix_fmt", "yuv420p")
    enter(data, store, "a", long)
    running = asyncio.create_task(asyncio.to_thread(worker.work, "a"))
    await until((data.folder("a").path / RESULTS_NAME).exists)
    assert await cancelled_within(store, "a") < GENEROUS_S
    await running
    assert {slot.state for slot in read_results(data.folder("a").path).slots} == {"ok"}


@pytest.mark.fault("O7")
async def test_a_disk_that_fills_up_in_the_middle(
    worker: Worker, store: JobStore, data: DataDir, stages: Stages, clip: Path
) -> None:
    """The job has failed and says why; when there is room, what is left of it can be run."""
    folder = data.folder("a")
    process = 0

    async def fill(_request: web.Request, key: str, _time: int) -> None:
        nonlocal process
        if key == "slot-2":
            (process,) = job_processes_of(os.getpid())
            limit_files(process, (folder.path / JOURNAL_NAME).stat().st_size)

    stages.stage2.rule = fill
    enter(data, store, "a", clip, annotate=False)
    await asyncio.to_thread(worker.work, "a")
    record = store.get("a")
    assert record.state == "failed"
    assert "File too large" in (record.error or "")

    stages.stage2.rule = lambda *_: asyncio.sleep(0)
    job = JobFile.read(folder.job_file)
    assert await run_job(job, folder, settings_for(stages), lambda: None) == Outcome("succeeded")
    assert slots_of(folder) == Counter(range(5))
    assert (stages.stage2.seen["slot-0"], stages.stage2.seen["slot-4"]) == (1, 1)


async def test_records_that_are_damaged(
    worker: Worker, store: JobStore, data: DataDir, stages: Stages, clip: Path
) -> None:
    """A torn last line is cut and its slot asked again; what cannot come from a kill fails the job with its reason."""
    enter(data, store, "whole", clip, annotate=False)
    await asyncio.to_thread(worker.work, "whole")
    lines = (data.folder("whole").path / JOURNAL_NAME).read_bytes().splitlines(keepends=True)
    torn, header = f"slot-{json.loads(lines[-1])['index']}", json.loads(lines[0])
    foreign = json.dumps({**header, "source_sha256": "0" * 64}).encode() + b"\n"
    for job_id, content, sends, error in (
        ("torn", [*lines[:-1], lines[-1][:20]], {torn: 1}, None),
        ("garbage", [*lines[:3], b"\x00\xff not a record\n", *lines[4:]], {}, "line 4 is no record of this version"),
        ("foreign", [foreign, *lines[1:]], {}, "needs the same source and settings"),
    ):
        stages.stage2.seen.clear()
        enter(data, store, job_id, clip, annotate=False)
        journal = data.folder(job_id).path / JOURNAL_NAME
        journal.write_bytes(b"".join(content))
        await asyncio.to_thread(worker.work, job_id)
        record = store.get(job_id)
        assert stages.stage2.seen == sends
        if error is None:
            assert (record.state, record.error) == ("succeeded", None)
            assert slots_of(data.folder(job_id)) == Counter(range(5))
        else:
            assert record.state == "failed"
            assert error in (record.error or "")
            assert journal.read_bytes() == b"".join(content)  # for whoever wants to look


async def test_a_folder_that_is_deleted_while_its_job_runs(
    worker: Worker, store: JobStore, data: DataDir, stages: Stages, clip: Path
) -> None:
    """The job has failed and says so; the worker runs the next one."""

    async def delete(_request: web.Request, key: str, _time: int) -> None:
        if key == "slot-2":
            data.folder("a").remove()

    stages.stage2.rule = delete
    for job_id in ("a", "b"):
        enter(data, store, job_id, clip, annotate=False)
        await asyncio.to_thread(worker.work, job_id)
    assert store.get("a").state == "failed"
    assert "No such file or directory" in (store.get("a").error or "")
    assert store.get("b").state == "succeeded"


@pytest.mark.fault("O5")
async def test_a_process_that_dies_is_replaced(
    worker: Worker, store: JobStore, data: DataDir, stages: Stages, clip: Path
) -> None:
    """One attempt more, in a new process, from where it was."""

    async def kill(_request: web.Request, key: str, count: int) -> None:
        if (key, count) == ("slot-2", 1):
            (process,) = job_processes_of(os.getpid())
            os.kill(process, 9)

    stages.stage2.rule = kill
    enter(data, store, "a", clip, annotate=False)
    await asyncio.to_thread(worker.work, "a")
    assert (store.get("a").state, store.get("a").attempts) == ("succeeded", 2)
    assert slots_of(data.folder("a")) == Counter(range(5))
    assert stages.stage2.seen["slot-2"] == 2


def behaving(stages: Stages) -> None:
    """Stages as new."""
    for stage in (stages.stage1, stages.stage2):
        stage.rule, stage.unready = behave, None
        stage.seen.clear()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def cancelled_within(store: JobStore, job_id: str) -> float:
    """Cancel a running job; how long it took, in seconds."""
    begun = time.monotonic()
    assert store.ask_cancel(job_id).state == "running"
    await until(lambda: store.get(job_id).has_ended)
    assert store.get(job_id).state == "cancelled"
    return time.monotonic() - begun


def limit_files(process: int, size: int) -> None:
    """No file of a process may grow beyond a size."""
    _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (size, hard))


def slots_of(folder: JobFolder) -> Counter[int]:
    """How many whole records each slot has."""
    lines = (folder.path / JOURNAL_NAME).read_bytes().splitlines()
    return Counter(json.loads(line)["index"] for line in lines if b'"type":"slot"' in line)
