"""The documented steps do the orchestrator's work in another order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.errors import BadReply, EngineFailed, VideoError
from pipeline_ver2.job import Job
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import Results, read_results
from serving.bench.variants import run_gathered
from tests.stand_ins import Stages, found_reply, refusal, stand_ins
from tests.videos import numbered, steady

SECONDS = 5
"""150 frames: 13 keyframes, 4 batches, 5 slots, the last one filled up."""


@pytest.fixture
async def stages() -> AsyncIterator[Stages]:
    """Scripted stages that tell what they were asked."""
    async with stand_ins() as both:
        yield both


def config_for(stages: Stages, window: int) -> Config:
    """A configuration that leads to the stages and waits for nobody."""
    overrides = {**stages.overrides(), "pipeline.stage2_window": window, "pipeline.retry_for_s": 0}
    return load_config(None, overrides, environ={})


def job_in(folder: Path) -> Job:
    """A short video, one number on every frame."""
    return Job(numbered("variants.mp4", steady(30, SECONDS)), folder)


async def gathered(stages: Stages, folder: Path, window: int = 1) -> Results:
    """Run a variant."""
    return await run_gathered(job_in(folder), config_for(stages, window), TimingRecorder())


def content_of(results: Results) -> list[dict[str, Any]]:
    """Keyframes and slots without their times."""
    times = {"duration_s", "queue_wait_s"}
    return [record.model_dump(exclude=times) for record in (*results.keyframes, *results.slots)]


def asked(stages: Stages) -> list[str]:
    """What Stage 2 was asked, in an order of its own, and forgotten."""
    bodies = sorted(str(body) for body in stages.stage2.bodies)
    stages.stage2.bodies.clear()
    return bodies


@pytest.mark.parametrize("window", [1, 2])
async def test_a_variant_gives_the_orchestrator_s_results(stages: Stages, tmp_path: Path, window: int) -> None:
    """The same keyframes, the same slots, and the very same requests, images included."""
    orchestrated = await run_pipeline(job_in(tmp_path / "orchestrated"), config_for(stages, window))
    wanted = asked(stages)
    results = await gathered(stages, tmp_path / "variant", window)
    assert content_of(results) == content_of(orchestrated)
    without_events = orchestrated.counts.model_copy(update={"events": 0})  # a variant looks for none
    assert results.counts == without_events
    assert results.counts.slots == 5
    assert asked(stages) == wanted


async def test_all_of_stage_1_comes_before_stage_2(stages: Stages, tmp_path: Path) -> None:
    """Batches are sent together; no slot is asked about while one of them is out."""
    four = asyncio.Barrier(4)
    out_at_first_slot: list[int] = []

    async def together(_request: web.Request, _key: str, _time: int) -> None:
        await four.wait()

    async def look(_request: web.Request, _key: str, _time: int) -> None:
        out_at_first_slot.append(stages.stage1.running)

    stages.stage1.rule, stages.stage2.rule = together, look
    await gathered(stages, tmp_path)
    assert (stages.stage1.most_running, stages.stage2.most_running) == (4, 1)
    assert out_at_first_slot == [0] * 5


async def test_the_window_bounds_stage_2(stages: Stages, tmp_path: Path) -> None:
    """Two requests at a time, neither fewer nor more."""
    both = asyncio.Barrier(2)

    async def in_pairs(_request: web.Request, key: str, _time: int) -> None:
        if key != "slot-4":  # the fifth has no partner
            await both.wait()

    stages.stage2.rule = in_pairs
    await gathered(stages, tmp_path, window=2)
    assert stages.stage2.most_running == 2


async def test_it_leaves_results_behind(stages: Stages, tmp_path: Path) -> None:
    """results.json is written inside the measured time, as by the orchestrator."""
    results = await gathered(stages, tmp_path / "new" / "folder")
    assert read_results(tmp_path / "new" / "folder") == results


async def test_a_failed_batch_ends_the_run(stages: Stages, tmp_path: Path) -> None:
    """With one plain error, although several batches were out."""

    async def fail(_request: web.Request, key: str, _time: int) -> web.StreamResponse | None:
        return refusal(503, "engine_failed") if key == "batch-1" else None

    stages.stage1.rule = fail
    with pytest.raises(EngineFailed, match="planted"):
        await gathered(stages, tmp_path)
    assert stages.stage2.seen == {}


async def test_a_failed_clip_ends_the_run(stages: Stages, tmp_path: Path) -> None:
    """A keyframe without a result would make less work for Stage 2."""

    async def fail(request: web.Request, _key: str, _time: int) -> web.StreamResponse | None:
        return found_reply(1 if request.headers["Idempotency-Key"].endswith("batch-3") else 4, 1, status=3)

    stages.stage1.rule = fail
    with pytest.raises(BadReply, match="status 3"):
        await gathered(stages, tmp_path)


async def test_a_source_that_is_no_video(stages: Stages, tmp_path: Path) -> None:
    """The error is the decoder's."""
    source = tmp_path / "text.mp4"
    source.write_text("no video")
    with pytest.raises(VideoError):
        await run_gathered(Job(source, tmp_path / "out"), config_for(stages, 1), TimingRecorder())


async def test_a_cancelled_run_lets_go(stages: Stages, tmp_path: Path) -> None:
    """Nothing of it goes on, and the stage sees its request end."""
    reached, forever = asyncio.Event(), asyncio.Event()

    async def hang(_request: web.Request, _key: str, _time: int) -> None:
        reached.set()
        await forever.wait()

    stages.stage2.rule = hang
    run = asyncio.create_task(gathered(stages, tmp_path))
    await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    async with asyncio.timeout(10):
        await stages.stage2.idle.wait()
