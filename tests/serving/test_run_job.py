"""The engine of a single job, against scripted stages."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pipeline_ver2.command import VIDEO_NAME
from pipeline_ver2.config import Telemetry
from pipeline_ver2.errors import FolderInUse
from pipeline_ver2.report import PICTURE_NAME, TRACE_NAME
from pipeline_ver2.results import read_results
from pipeline_ver2.trace_context import TraceContext
from serving.jobs import JobFile, JobFolder, JobOptions
from serving.progress import read_progress
from serving.run_job import Outcome, StopReason, main, run_job
from tests.collector import collector
from tests.pipeline_ver2.conftest import settings_for, states
from tests.stand_ins import Stages, completion, hang, stand_ins

PATIENCE_S = 60


@pytest.fixture
async def stages() -> AsyncIterator[Stages]:
    """Both scripted stages."""
    async with stand_ins() as both:
        yield both


def go_on() -> StopReason | None:
    """Never stop."""
    return None


def job_of(clip: Path, **options: Any) -> JobFile:  # noqa: ANN401 - values of any option
    """A job for a clip, without the annotated video unless asked for."""
    return JobFile(id="a", source=clip, options=JobOptions.model_validate({"annotate": False, **options}))


async def test_a_job_leaves_its_results_and_pictures(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """With the annotated video if asked for; its counts are those of the results."""
    outcome = await run_job(job_of(clip, annotate=True), JobFolder(tmp_path), settings_for(stages), go_on)
    assert outcome == Outcome("succeeded")
    assert states(read_results(tmp_path)) == ["ok"] * 5
    for name in (TRACE_NAME, PICTURE_NAME, VIDEO_NAME):
        assert (tmp_path / name).stat().st_size
    progress = read_progress(JobFolder(tmp_path))
    assert (progress.frames, progress.keyframes, progress.slots) == (145, {"ok": 13}, {"ok": 5})


async def test_a_job_is_traced(clip: Path, tmp_path: Path) -> None:
    """The stages are told of spans of the job's trace, and the collector and the timeline know the same ones."""
    asking, told = TraceContext.new(), set[str]()

    async def note(request: web.Request, _key: str, _time: int) -> None:
        span = TraceContext.parse(request.headers.get("traceparent"))
        assert span is not None
        assert span.trace_id == asking.trace_id
        told.add(span.span_id)

    async with stand_ins() as stages:
        stages.stage1.rule = stages.stage2.rule = note
        with collector() as got:
            config = settings_for(stages).model_copy(update={"telemetry": Telemetry(otlp_endpoint=got.url)})
            job = job_of(clip).model_copy(update={"trace": asking.child()})
            assert await run_job(job, JobFolder(tmp_path), config, go_on) == Outcome("succeeded")
    assert len(told) == 4 + 5
    assert {span.span_id.hex() for span in (*got.named("stage1"), *got.named("stage2"))} == told
    assert [span.parent_span_id.hex() for span in got.named("job")] == [asking.span_id]
    timeline = json.loads((tmp_path / TRACE_NAME).read_text())
    assert timeline["otherData"]["trace_id"] == asking.trace_id
    assert {event["args"]["span_id"] for event in timeline["traceEvents"] if "span_id" in event["args"]} == told


async def test_the_options_count(clip: Path, tmp_path: Path) -> None:
    """With the gate of its options a job asks nothing where nothing was found."""
    async with stand_ins(found=0) as stages:
        job = job_of(clip, gate="detections")
        assert (await run_job(job, JobFolder(tmp_path), settings_for(stages), go_on)).state == "succeeded"
        assert states(read_results(tmp_path)) == ["skipped"] * 5
        assert stages.stage2.keys == []


@pytest.mark.fault("O9")
@pytest.mark.parametrize("reason", ["cancelled", "interrupted"])
async def test_a_job_stops_when_it_is_told_to(clip: Path, stages: Stages, tmp_path: Path, reason: StopReason) -> None:
    """With a stage that hangs; run again it goes on, and asks about no slot that was answered."""
    hanging = asyncio.Event()

    async def hang_at_two(request: web.Request, key: str, time: int) -> None:
        if key == "slot-2":
            hanging.set()
            await hang(request, key, time)

    stages.stage2.rule = hang_at_two
    folder = JobFolder(tmp_path)
    settings = settings_for(stages, pipeline__stage2_window=1)
    outcome = await run_job(job_of(clip), folder, settings, lambda: reason if hanging.is_set() else None)
    assert outcome == Outcome(reason)
    assert read_results(tmp_path).state == "cancelled"

    stages.stage2.rule = lambda *_: asyncio.sleep(0)
    assert await run_job(job_of(clip), folder, settings, go_on) == Outcome("succeeded")
    assert {key: stages.stage2.seen[key] for key in ("slot-0", "slot-1", "slot-4")} == dict.fromkeys(
        ("slot-0", "slot-1", "slot-4"), 1
    )


async def test_failed_slots_stay_failed_when_a_job_goes_on(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Going on is not trying again."""

    async def spoil_one(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return completion("no") if key == "slot-1" else None

    stages.stage2.rule = spoil_one
    for _ in range(2):
        assert await run_job(job_of(clip), JobFolder(tmp_path), settings_for(stages), go_on) == Outcome("partial")
    assert stages.stage2.seen["slot-1"] == 2  # both sends are of the first run


async def test_a_video_longer_than_its_header_says_is_stopped(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """What the header hides is counted while decoding."""
    stages.stage2.rule = hang
    settings = settings_for(stages, serving__limits__seconds=1.0)
    outcome = await asyncio.wait_for(run_job(job_of(clip), JobFolder(tmp_path), settings, go_on), PATIENCE_S)
    assert outcome.state == "failed"
    assert "serving.limits.seconds" in (outcome.error or "")


async def test_what_goes_wrong_is_the_outcome(stages: Stages, tmp_path: Path) -> None:
    """A source that is no video fails the job with the reason."""
    (tmp_path / "source").write_text("nothing")
    outcome = await run_job(job_of(tmp_path / "source"), JobFolder(tmp_path), settings_for(stages), go_on)
    assert outcome.state == "failed"
    assert (outcome.error or "").startswith("video: ")


async def test_results_without_pictures_are_results(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """If the pictures cannot be written, the job has its state all the same, and says so."""
    (tmp_path / TRACE_NAME).mkdir()
    outcome = await run_job(job_of(clip), JobFolder(tmp_path), settings_for(stages), go_on)
    assert outcome.state == "succeeded"
    assert "timeline" in (outcome.error or "")


async def test_a_job_that_runs_is_not_run_beside_itself(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """The second process is refused and changes nothing."""
    folder = JobFolder(tmp_path)
    with folder.held(), pytest.raises(FolderInUse):
        await run_job(job_of(clip), folder, settings_for(stages), go_on)
    assert stages.stage1.keys == []


@pytest.mark.parametrize("arguments", [["missing.json"], ["job.json", "--config", "missing.json"]])
def test_usage(tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A job file or configuration that cannot be read is exit code 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.json").write_text('{"id": "a", "source": "source"}')
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert main(arguments) == 2
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)


async def test_a_job_file_is_run_from_the_command_line(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Without a queue, by a process of its own."""
    (tmp_path / "job.json").write_text(job_of(clip).model_dump_json())
    (tmp_path / "config.json").write_text(settings_for(stages).model_dump_json())
    command = [sys.executable, "-m", "serving.run_job", "job.json"]
    run = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (run.returncode, run.stdout) == (0, "succeeded\n"), run.stderr
    assert states(read_results(tmp_path)) == ["ok"] * 5
