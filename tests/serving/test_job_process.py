"""Processes that run jobs, against scripted stages."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.errors import FolderInUse
from pipeline_ver2.results import read_results
from serving import job_process
from serving.job_process import JobProcess, JobProcesses
from serving.jobs import JobFile, JobFolder, JobOptions
from serving.run_job import Outcome, StopReason
from tests.pipeline_ver2.conftest import settings_for, states
from tests.stand_ins import Stages, hang, stand_ins

PATIENCE_S = 60
DIES_WITH_ITS_PARENT = """
import sys
from pathlib import Path
from pipeline_ver2.config import Config
from serving.job_process import JobProcess
from serving.jobs import JobFolder
process = JobProcess(Config.model_validate_json(sys.argv[1]))
print(process._process.pid, flush=True)
process.run(JobFolder(Path(sys.argv[2])), lambda: None)
"""

LOUD = """
import os
from serving import job_process
quiet = job_process._run
def loud(*arguments):
    print("noise", flush=True)
    os.write(1, b"more of it")
    return quiet(*arguments)
job_process._run = loud
job_process.main()
"""


@pytest.fixture
async def stages() -> AsyncIterator[Stages]:
    """Both scripted stages."""
    async with stand_ins() as both:
        yield both


@pytest.fixture
def folder(tmp_path: Path, clip: Path) -> JobFolder:
    """A folder with a job."""
    return folder_of(tmp_path / "job", clip)


def folder_of(path: Path, clip: Path) -> JobFolder:
    """A folder with a job for a clip."""
    made = JobFolder(path)
    made.path.mkdir()
    job = JobFile(id=path.name, source=clip, options=JobOptions(annotate=False))
    made.job_file.write_text(job.model_dump_json())
    return made


@contextmanager
def started(config: Config) -> Iterator[JobProcess]:
    """A process, ended with the block."""
    with closing(JobProcess(config)) as process:
        yield process


def go_on() -> StopReason | None:
    """Never stop."""
    return None


async def test_one_process_runs_many_jobs(tmp_path: Path, clip: Path, stages: Stages) -> None:
    """One after the other, each with its outcome; a broken one among them does no harm to the next."""
    broken = folder_of(tmp_path / "broken", clip)
    broken.job_file.write_text("{}")
    with started(settings_for(stages)) as process:
        for name in ("a", "b"):
            folder = folder_of(tmp_path / name, clip)
            assert await asyncio.to_thread(process.run, folder, go_on) == Outcome("succeeded")
            assert states(read_results(folder.path)) == ["ok"] * 5
            outcome = await asyncio.to_thread(process.run, broken, go_on)
            assert outcome is not None
            assert (outcome.state, (outcome.error or "").split(":")[0]) == ("failed", "results")
        assert process.is_fit


@pytest.mark.fault("O9")
@pytest.mark.parametrize("reason", ["cancelled", "interrupted"])
async def test_a_job_is_stopped(folder: JobFolder, stages: Stages, reason: StopReason) -> None:
    """With its reason; the process runs the next job, which is the same one going on."""
    stages.stage2.rule = hang
    with started(settings_for(stages)) as process:
        seen = stages.stage2.seen
        assert await asyncio.to_thread(process.run, folder, lambda: reason if seen else None) == Outcome(reason)
        assert read_results(folder.path).state == "cancelled"
        stages.stage2.rule = lambda *_: asyncio.sleep(0)
        assert await asyncio.to_thread(process.run, folder, go_on) == Outcome("succeeded")


@pytest.mark.fault("O9")
async def test_a_job_that_does_not_stop_is_killed(
    folder: JobFolder, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a bounded time, and the process is not used again."""
    monkeypatch.setattr(job_process, "STOP_S", 0.0)
    stages.stage2.rule = hang
    with started(settings_for(stages)) as process:

        def stop() -> StopReason | None:
            if not stages.stage2.seen:
                return None
            os.kill(process._process.pid, signal.SIGSTOP)
            return "cancelled"

        assert await asyncio.to_thread(process.run, folder, stop) == Outcome("cancelled")
        assert not process.is_fit


@pytest.mark.fault("O5")
async def test_a_process_that_dies_is_told(folder: JobFolder, stages: Stages) -> None:
    """kill -9 in the middle of a job, and of one that waits for its next."""
    stages.stage2.rule = hang
    with started(settings_for(stages)) as process:

        def kill() -> StopReason | None:
            if stages.stage2.seen:
                os.kill(process._process.pid, signal.SIGKILL)
            return None

        assert await asyncio.to_thread(process.run, folder, kill) is None
        assert await asyncio.to_thread(process.run, folder, go_on) is None
        assert not process.is_fit


async def test_a_job_that_runs_elsewhere(folder: JobFolder, stages: Stages) -> None:
    """Is refused, and the process is as good as before."""
    with started(settings_for(stages)) as process:
        with folder.held(), pytest.raises(FolderInUse):
            await asyncio.to_thread(process.run, folder, go_on)
        assert process.is_fit


@pytest.mark.slow
@pytest.mark.fault("O5")
async def test_it_does_not_outlive_its_parent(folder: JobFolder, stages: Stages) -> None:
    """When the parent is killed, the job has stopped at once, and its folder is free."""
    stages.stage2.rule = hang
    command = [sys.executable, "-c", DIES_WITH_ITS_PARENT, settings_for(stages).model_dump_json(), str(folder.path)]
    parent = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    async with asyncio.timeout(PATIENCE_S):
        while not stages.stage2.seen:  # noqa: ASYNC110 - another process asks
            await asyncio.sleep(0.02)
        parent.kill()
        await parent.wait()
        while Path(f"/proc/{child}").exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)
    with folder.held():
        pass


def test_what_libraries_print_is_no_answer(
    tmp_path: Path, stages_away: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is noisy on its standard output answers all the same."""
    monkeypatch.setattr(job_process, "_COMMAND", (sys.executable, "-c", LOUD))
    with started(stages_away) as process:
        outcome = process.run(JobFolder(tmp_path), go_on)
        assert outcome is not None
        assert (outcome.state, (outcome.error or "").partition(":")[0]) == ("failed", "results")


def test_processes_are_used_again_and_replaced(stages_away: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is free is taken; one that has run its jobs, died or was left in the middle of a job is not."""
    monkeypatch.setattr(job_process, "JOBS_A_PROCESS", 1)
    pool = JobProcesses(stages_away)
    with pool.one() as first, pool.one() as second:
        assert first is not second
    with pool.one() as again:
        assert again is first
    with pool.one() as again, pytest.raises(LookupError):
        again.run(JobFolder(Path("nowhere")), lookup_error)
    with pool.one() as other:
        assert other is second
        pool.close()
    assert not other.is_fit


def lookup_error() -> StopReason | None:
    """A defect of whoever says why to stop."""
    raise LookupError


@pytest.fixture
def stages_away() -> Config:
    """A configuration."""
    return Config()
