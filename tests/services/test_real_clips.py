"""Real videos through the whole pipeline with the embedded models; they are not part of the project."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline_ver2.config import load_config
from pipeline_ver2.job import Job
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import Results
from pipeline_ver2.supervisor import Supervisor

CLIPS = Path(__file__).parents[3] / "shared" / "clips"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not CLIPS.is_dir(), reason="the folder ../shared/clips with real videos is not there"),
]


async def test_every_real_clip_runs_to_its_end(tmp_path: Path, free_ports: tuple[int, int]) -> None:
    """No slot fails, boxes lie inside the frame, times increase, and every grid frame is counted."""
    overrides = {"paths.work_dir": str(tmp_path), "stage1.port": free_ports[0], "stage2.port": free_ports[1]}
    config = load_config(None, overrides, environ={})
    sources = sorted(await asyncio.to_thread(lambda: [*CLIPS.glob("*.mp4"), *CLIPS.glob("*.mkv")]))
    assert sources
    async with Supervisor(config):
        for source in sources:
            results = await run_pipeline(Job(source, tmp_path / source.name), config)
            assert results.state == "succeeded", source.name
            assert results.counts.ok == results.counts.slots > 0, source.name
            assert_in_frame_and_in_order(results)
            if source.name == "asl_walk.mkv":
                assert results.counts.frames_decoded == results.counts.frames_grid


def assert_in_frame_and_in_order(results: Results) -> None:
    """Every box inside the upright frame; keyframe times strictly increasing."""
    width, height = results.video.width, results.video.height
    for keyframe in results.keyframes:
        for person in keyframe.detections:
            x1, y1, x2, y2 = person.box
            assert 0 <= x1 <= x2 <= width
            assert 0 <= y1 <= y2 <= height
    assert all(one.time_s < other.time_s for one, other in pairwise(results.keyframes))
