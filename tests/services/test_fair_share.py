"""Two jobs at once, through real daemons with emulated engines: a small one does not wait behind a big one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.job import Job, Silent
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import KeyframeRecord, SlotRecord
from serving.workers import stage1_server, stage2_server
from tests.servers import served
from tests.videos import lavfi

STAGE1_S, STAGE2_S = 0.15, 0.5
AT_ONCE = 16
"""What each job sends to a stage at a time: first come first served would be a wait of 2.4 s and of 4 s."""


@pytest.fixture
def config() -> Iterator[Config]:
    """Both stages, with engines of fixed service times, and jobs that send as much as they can."""
    settings = {
        "stage1.engine": "emulated",
        "stage1.emulated.service_s": STAGE1_S,
        "stage1.max_batch": 4,
        "stage1.max_in_flight": AT_ONCE,
        "stage2.engine": "emulated",
        "stage2.emulated.service_s": STAGE2_S,
        "stage2.limit": 2,
        "pipeline.stage2_window": AT_ONCE,
        "pipeline.queue_size": AT_ONCE,
    }
    engines = load_config(None, settings, environ={})
    with ExitStack() as running:
        applications = {"stage1": stage1_server.build_app(engines), "stage2": stage2_server.build_app(engines)}
        urls = {f"{stage}.url": running.enter_context(served(app)) for stage, app in applications.items()}
        yield load_config(None, {**settings, **urls}, environ={})


class Watch(Silent):
    """An observer that knows how many slots are settled."""

    def __init__(self) -> None:
        self.slots = 0
        self.moved = asyncio.Event()

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """Count."""
        self.slots += isinstance(record, SlotRecord)
        self.moved.set()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_small_job_beside_a_big_one(config: Config, clip: Path, tmp_path: Path) -> None:
    """Its requests wait for those that run and for a turn of the other job, not for all that the other has sent."""
    long = lavfi("long.mp4", "color=red:s=96x64:r=30:d=40", "-preset", "ultrafast", "-pix_fmt", "yuv420p")
    watch = Watch()
    big = asyncio.create_task(run_pipeline(Job(long, tmp_path / "big"), config, watch))
    async with asyncio.timeout(120):
        while watch.slots < 2:
            await watch.moved.wait()
            watch.moved.clear()
    recorder = TimingRecorder()
    small = await run_pipeline(Job(clip, tmp_path / "small"), config, recorder=recorder)
    left = 37 - watch.slots
    assert (small.state, small.counts.slots) == ("succeeded", 5)
    stage1_waits = [span.end_s - span.start_s for span in recorder.spans if span.name == "stage1_wait"]
    assert len(stage1_waits) == 4
    assert max(stage1_waits) < AT_ONCE * STAGE1_S / 2
    assert max(slot.queue_wait_s or 0 for slot in small.slots) < AT_ONCE / 2 * STAGE2_S / 2
    assert left > 10, "the big job was nearly done before the small one"
    assert (await big).counts.ok == 37
