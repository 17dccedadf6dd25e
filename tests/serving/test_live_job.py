"""Jobs that follow a live source, against scripted stages and a small camera."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.results import JOURNAL_NAME, read_results
from pipeline_ver2.rotation import rotated_files
from serving.jobs import JobFile, JobFolder, JobOptions
from serving.progress import read_progress
from serving.run_job import Outcome, run_job
from tests.live_camera import Camera, served, transport_stream
from tests.pipeline_ver2.conftest import settings_for
from tests.stand_ins import Stages, stand_ins


@pytest.fixture
async def stages() -> AsyncIterator[Stages]:
    """Both scripted stages."""
    async with stand_ins() as both:
        yield both


@pytest.fixture
async def camera() -> AsyncIterator[Camera]:
    """A camera that gives 40 frames at 100 a second, again and again."""
    async with served(Camera([transport_stream(40)], rate=100)) as streaming:
        yield streaming


def settings(stages: Stages, camera: Camera, **overrides: Any) -> Config:  # noqa: ANN401 - values of any key
    """A configuration in which the camera may be followed."""
    quick = {"live__reconnect__first_wait_s": 0.02, "live__reconnect__max_wait_s": 0.1, "pipeline__retry_for_s": 0.3}
    allowed = {"serving__allowed_hosts": [camera.url.split("/")[2]], "serving__downloads__private": True}
    return settings_for(stages, **{"pipeline__keyframe_interval": 3, **quick, **allowed, **overrides})


def job_of(camera: Camera, **options: Any) -> JobFile:  # noqa: ANN401 - values of any option
    """A job that follows the camera for a second unless told otherwise."""
    chosen = JobOptions.model_validate({"live": True, "duration_s": 1, "deadline_s": 0, **options})
    return JobFile(id="a", source=Path("camera"), address=camera.url, options=chosen)


async def test_a_source_is_followed_for_its_time(stages: Stages, camera: Camera, tmp_path: Path) -> None:
    """Then there is a summary without a video; the stages know the job as one client."""
    outcome = await run_job(job_of(camera), JobFolder(tmp_path), settings(stages, camera), lambda: None)
    assert outcome == Outcome("succeeded")
    results, progress = read_results(tmp_path), read_progress(JobFolder(tmp_path))
    assert (results.counts.ok, results.source) == (results.counts.slots, camera.url)
    assert progress.slots == {"ok": results.counts.ok}
    assert stages.stage1.clients == stages.stage2.clients == {"a"}
    assert not (tmp_path / "annotated.mp4").exists()


async def test_going_on_is_another_run(stages: Stages, camera: Camera, tmp_path: Path) -> None:
    """Its questions are new ones, its records are beside the earlier, and progress counts both."""
    folder, config = JobFolder(tmp_path), settings(stages, camera)
    answered = asyncio.Event()

    async def note(*_: object) -> None:
        answered.set()

    stages.stage2.rule = note
    job = job_of(camera, duration_s=None)
    outcome = await run_job(job, folder, config, lambda: "interrupted" if answered.is_set() else None)
    assert outcome == Outcome("interrupted")
    before = read_progress(folder)
    assert await run_job(job_of(camera), folder, config, lambda: None) == Outcome("succeeded")
    files = (*rotated_files(tmp_path), tmp_path / JOURNAL_NAME)
    headers = [json.loads(file.read_text().splitlines()[0]) for file in files]
    assert len({header["run"] for header in headers}) == len(headers) == 2
    assert set(stages.stage2.seen.values()) == {1}
    after = read_progress(folder)
    assert after.slots["ok"] == before.slots.get("ok", 0) + read_results(tmp_path).counts.ok
    assert after.frames > before.frames > 0


async def test_its_time_does_not_begin_anew(stages: Stages, camera: Camera, tmp_path: Path) -> None:
    """When it has begun its end is written down; one that goes on after it does not go on."""
    folder, config = JobFolder(tmp_path), settings(stages, camera)
    job = job_of(camera, duration_s=3600)
    outcome = await run_job(job, folder, config, lambda: "interrupted" if folder.job_file.exists() else None)
    assert outcome == Outcome("interrupted")
    noted = JobFile.read(folder.job_file)
    live = noted.live(config)
    assert live is not None
    assert live.duration_s is None
    assert timedelta(0) < (live.until or datetime.now(UTC)) - datetime.now(UTC) <= timedelta(hours=1)
    over = noted.model_copy(update={"until": datetime.now(UTC)})
    assert (await run_job(over, folder, config, lambda: None)).state == "partial"


async def test_a_source_that_was_never_there(stages: Stages, camera: Camera, tmp_path: Path) -> None:
    """It ends the job; one that was there once is waited for until the job's time is over."""
    camera.open = False
    folder, config = JobFolder(tmp_path), settings(stages, camera)
    outcome = await run_job(job_of(camera), folder, config, lambda: None)
    assert outcome.state == "failed"
    assert (outcome.error or "").startswith("source_lost: ")
    assert camera.connections == 0

    (tmp_path / JOURNAL_NAME).touch()
    asyncio.get_running_loop().call_later(1, setattr, camera, "open", True)  # noqa: FBT003 - the value
    assert await run_job(job_of(camera, duration_s=10), folder, config, _once(folder)) == Outcome("cancelled")
    assert read_results(tmp_path).counts.keyframes


def _once(folder: JobFolder) -> Any:  # noqa: ANN401 - a reason to stop
    """A cancel after the first keyframes."""
    return lambda: "cancelled" if read_progress(folder).keyframes else None


@pytest.mark.fault("O8")
async def test_a_source_that_is_refused(stages: Stages, camera: Camera, tmp_path: Path) -> None:
    """What was allowed when it was posted may not be any more: nothing is connected to."""
    config = settings(stages, camera, serving__allowed_hosts=[])
    outcome = await run_job(job_of(camera), JobFolder(tmp_path), config, lambda: None)
    assert outcome.state == "failed"
    assert (outcome.error or "").startswith("source_refused: ")
    assert camera.headers == []


async def test_a_source_may_last_longer_than_a_video(stages: Stages, camera: Camera, tmp_path: Path) -> None:
    """`serving.limits.seconds` is for files."""
    config = settings(stages, camera, serving__limits__seconds=0.1)
    assert await run_job(job_of(camera), JobFolder(tmp_path), config, lambda: None) == Outcome("succeeded")
