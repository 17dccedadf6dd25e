"""The orchestrator's event loop: not held up by decoding, by what waits, or by a part that dies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from pipeline_ver2.job import Job, Silent
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import KeyframeRecord, SlotRecord
from pipeline_ver2.stage_clients import Stage1Client
from tests.pipeline_ver2.conftest import settings_for, states
from tests.stand_ins import Stages
from tests.videos import lavfi

LONGEST_STEP_S = 0.05
"""A few milliseconds are usual; one keyframe of 4K, decoded in the loop, is over a tenth of a second."""
BEYOND_A_POOL = 120


@dataclass
class Steps:
    """The longest that the event loop worked without looking round."""

    longest_s: float = 0.0


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Steps]:
    """Watch the event loop by the CPU time of its own thread, which the load of the machine does not change."""
    steps = Steps()

    async def look() -> None:
        seen = time.thread_time()
        while True:
            await asyncio.sleep(0.002)
            now = time.thread_time()
            steps.longest_s, seen = max(steps.longest_s, now - seen), now

    looking = asyncio.create_task(look())
    try:
        yield steps
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


@pytest.mark.slow
@pytest.mark.fault("O10")
async def test_the_loop_answers_while_a_4k_file_is_decoded(stages: Stages, tmp_path: Path) -> None:
    """Whoever asks the loop has its answer well within 200 ms, from the first frame to the last."""
    large = lavfi("4k.mp4", "testsrc=s=3840x2160:r=10:d=3", "-preset", "ultrafast", "-pix_fmt", "yuv420p")
    settings = settings_for(stages, stage1__timeout_s=60.0, stage2__timeout_s=60.0)
    async with watched_loop() as steps:
        results = await run_pipeline(Job(large, tmp_path), settings)
    assert (results.video.width, results.state, results.counts.keyframes > 5) == (3840, "succeeded", True)
    assert 0 < steps.longest_s < LONGEST_STEP_S


class Broken(Silent):
    """An observer with a defect, which shows at the first slot: the consumer that tells of it dies."""

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """Break."""
        if isinstance(record, SlotRecord):
            raise ZeroDivisionError


@pytest.mark.fault("O1")
async def test_a_consumer_that_dies_ends_the_run(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """With its error, at once: nobody waits for a queue that is not emptied any more."""
    settings = settings_for(stages, pipeline__queue_size=1, pipeline__stage2_window=1)
    async with asyncio.timeout(30):
        with pytest.raises(ExceptionGroup) as caught:
            await run_pipeline(Job(clip, tmp_path), settings, Broken())
    assert caught.group_contains(ZeroDivisionError)


@pytest.mark.fault("O1")
async def test_a_reply_that_breaks_off_fails_its_slot_alone(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """A body that ends early, every time: that slot fails, the others are answered."""

    async def cut(request: web.Request, key: str, _time: int) -> web.StreamResponse | None:
        if key != "slot-1":
            return None
        reply = web.StreamResponse(headers={"Content-Length": "1000"})
        await reply.prepare(request)
        await reply.write(b'{"choices": [')
        assert request.transport is not None
        request.transport.close()
        return reply

    stages.stage2.rule = cut
    async with asyncio.timeout(60):
        results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))
    assert states(results) == ["ok", "failed", "ok", "ok", "ok"]


@pytest.mark.fault("O3")
async def test_time_limits_count_no_waiting_for_a_connection(stages: Stages) -> None:
    """More requests at once than pools usually have: all are with the stage at the same time."""
    all_there = asyncio.Event()

    async def hold(_request: web.Request, _key: str, _time: int) -> None:
        if stages.stage1.running == BEYOND_A_POOL:
            all_there.set()
        await all_there.wait()

    stages.stage1.rule = hold
    clip = np.zeros((16, 32, 48, 3), np.uint8)
    config = settings_for(stages, stage1__timeout_s=30.0).stage1
    async with Stage1Client(config, retry_for_s=0) as client, asyncio.TaskGroup() as group:
        for number in range(BEYOND_A_POOL):
            group.create_task(client.detect([clip], key=f"job/batch-{number}"))
    assert stages.stage1.most_running == BEYOND_A_POOL
