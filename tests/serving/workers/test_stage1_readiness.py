"""When Stage 1 is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import aiohttp
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from pipeline_ver2.errors import DeadlineShed, EngineFailed, StageUnreachable
from serving.workers.stage1_engine import ModelInfo, RawBatch
from serving.workers.stage1_queue import BatchQueue
from serving.workers.stage1_readiness import Readiness
from tests import tiny_detector as tiny
from tests.oip_client import send_clips
from tests.tiny_detector import clip_of


class Patient:
    """An engine that can fall ill and recover."""

    def __init__(self) -> None:
        self.info = ModelInfo("none", "none", "none", ("a",), 2, (4, 6))
        self.shapes: list[tuple[int, ...]] = []
        self.is_ill = False

    def run(self, clips: Sequence[NDArray[np.uint8]]) -> RawBatch:
        """Fails on everything while ill."""
        self.shapes += [clip.shape for clip in clips]
        return RawBatch([EngineFailed("the device is lost")] * len(clips) if self.is_ill else np.zeros((1, 5, 1)))

    def close(self) -> None:
        """Nothing to do."""


@pytest.fixture
def engine() -> Patient:
    """A sound one."""
    return Patient()


@pytest.fixture
async def readiness(engine: Patient) -> AsyncIterator[Readiness]:
    """Of the engine, with a queue of its own."""
    queue = BatchQueue(4, 4, 0, CollectorRegistry())
    made = Readiness(queue, lambda: engine)
    yield made
    await made.close()
    queue.close()


def fail(readiness: Readiness, error: Exception) -> None:
    """A request that ends so."""
    with pytest.raises(type(error)), readiness.watching():
        raise error


async def test_a_detector_is_trusted_until_it_fails(readiness: Readiness, engine: Patient) -> None:
    """No clip is run for the asking; refusals are no failures."""
    await readiness.check()
    fail(readiness, DeadlineShed("too late"))
    await readiness.check()
    assert engine.shapes == []


async def test_a_failure_of_the_clips_own_is_found_out_by_one_grey_clip(readiness: Readiness, engine: Patient) -> None:
    """Once; those who ask at the same time share it."""
    fail(readiness, EngineFailed("a bad clip"))
    await asyncio.gather(*(readiness.check() for _ in range(5)))
    await readiness.check()
    assert engine.shapes == [(2, 4, 6, 3)]


async def test_an_engine_that_fails_on_everything_is_not_ready(readiness: Readiness, engine: Patient) -> None:
    """Each asking is a new proof; work that succeeds is one, too."""
    engine.is_ill = True
    fail(readiness, EngineFailed("the device is lost"))
    for _ in range(2):
        with pytest.raises(StageUnreachable, match="the detector fails: the device is lost"):
            await readiness.check()
    with readiness.watching():
        pass
    await readiness.check()
    assert len(engine.shapes) == 2


async def test_one_poison_clip_leaves_the_daemon_ready(stage1_url: str) -> None:
    """The model fails on the clip, and works."""
    async with aiohttp.ClientSession(stage1_url) as http:
        reply = await send_clips(http, clip_of(tiny.RED, others=tiny.MAGENTA))
        assert reply.status == 503
        for path in ("/readyz", "/v2/health/ready"):
            async with http.get(path) as ready:
                assert ready.status == 200
