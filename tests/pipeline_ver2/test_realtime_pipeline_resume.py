"""Cancelled and resumed runs of the orchestrator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from pipeline_ver2.errors import ResultsError
from pipeline_ver2.job import Job
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import JOURNAL_NAME, read_results
from tests.pipeline_ver2.conftest import settings_for, states
from tests.stand_ins import Stages, completion, hang


@pytest.mark.fault("O9")
async def test_cancelled_in_the_middle_it_returns_soon_and_keeps_what_there_is(
    clip: Path, stages: Stages, tmp_path: Path
) -> None:
    """Cancel with both stages hanging returns within 2 s; the folder is free again and says cancelled."""
    reached = asyncio.Event()

    async def hang_and_tell(request: web.Request, key: str, time: int) -> web.Response | None:
        reached.set()
        await hang(request, key, time)
        return None

    stages.stage2.rule = hang_and_tell
    task = asyncio.create_task(run_pipeline(Job(clip, tmp_path), settings_for(stages)))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 2)

    assert read_results(tmp_path).state == "cancelled"
    stages.stage2.rule = lambda *_: asyncio.sleep(0)
    results = await run_pipeline(Job(clip, tmp_path, resume=True), settings_for(stages))
    assert states(results) == ["ok"] * 5


async def test_resume_sends_only_what_is_missing(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Finished keyframes and slots are not sent again, failed ones are; each slot has one final record."""

    async def break_one(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return completion("no") if key == "slot-3" else None

    stages.stage2.rule = break_one
    settings = settings_for(stages)
    first = await run_pipeline(Job(clip, tmp_path), settings)
    assert states(first) == ["ok", "ok", "ok", "failed", "ok"]
    with (tmp_path / JOURNAL_NAME).open("ab") as journal:
        journal.write(b'{"type": "slot", "ind')  # what a kill leaves

    stages.stage2.keys.clear()
    stages.stage1.keys.clear()
    stages.stage2.rule = lambda *_: asyncio.sleep(0)
    kept = await run_pipeline(Job(clip, tmp_path, resume=True, keep_failed=True), settings)
    assert (states(kept), stages.stage2.keys) == (states(first), [])

    second = await run_pipeline(Job(clip, tmp_path, resume=True), settings)
    assert states(second) == ["ok"] * 5
    assert [key.split("/")[1] for key in stages.stage2.keys] == ["slot-3"]
    assert stages.stage1.keys == []
    assert second.keyframes == first.keyframes


async def test_a_resume_that_is_cancelled_forgets_nothing(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """What failed before and was not tried again yet stays in results.json as failed."""
    reached = asyncio.Event()

    async def break_two(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return completion("no") if key in {"slot-3", "slot-4"} else None

    async def hang_and_tell(request: web.Request, key: str, time: int) -> None:
        reached.set()
        await hang(request, key, time)

    stages.stage2.rule = break_two
    await run_pipeline(Job(clip, tmp_path), settings_for(stages))
    stages.stage2.rule = hang_and_tell
    task = asyncio.create_task(run_pipeline(Job(clip, tmp_path, resume=True), settings_for(stages)))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    results = read_results(tmp_path)
    assert (results.state, states(results)) == ("cancelled", ["ok", "ok", "ok", "failed", "failed"])


async def test_resume_of_another_run_is_refused(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Other settings in the header stop the run; so do results without --resume."""
    await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    with pytest.raises(ResultsError, match="same source and settings"):
        await run_pipeline(Job(clip, tmp_path, resume=True), settings_for(stages, pipeline__keyframe_interval=5))
    with pytest.raises(ResultsError, match="--resume"):
        await run_pipeline(Job(clip, tmp_path), settings_for(stages))
