"""The Stage 1 benchmark on a daemon with a tiny detector; nothing here looks at speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.errors import VideoError
from serving.bench.stage1 import Plan, first_clips, measure
from serving.bench.stage1_report import BARE, DAEMON, bars_of, build_report
from tests.tiny_detector import CLIP_LENGTH, HEIGHT, WIDTH
from tests.videos import numbered, steady


async def test_the_first_clips_of_a_video(tiny_stage1: Config) -> None:
    """As many as a request holds, at the model's size; a video with fewer keyframes cannot be used."""
    clips = await first_clips(numbered("bench.mp4", steady(30, 2)), tiny_stage1, (HEIGHT, WIDTH))
    assert clips.shape == (4, CLIP_LENGTH, HEIGHT, WIDTH, 3)
    with pytest.raises(VideoError, match="2 keyframes, 4 are needed"):
        await first_clips(numbered("short.mp4", steady(30, 1)), tiny_stage1, (HEIGHT, WIDTH))


@pytest.mark.slow
async def test_everything_is_measured_in_turns(tiny_stage1: Config, tmp_path: Path) -> None:
    """Each round in the other order than the one before, first with requests of several clips, then of one."""
    progress: list[str] = []
    plan = Plan(pairs=2, seconds=0.2, soak_s=0.5, peers=())
    clip = numbered("bench.mp4", steady(30, 2))
    figures = await measure(clip, tiny_stage1, tmp_path, plan, progress.append)
    assert [list(each) for each in figures.batches] == [[BARE, DAEMON], [DAEMON, BARE]]
    assert [list(each) for each in figures.singles] == [[BARE, DAEMON], [DAEMON, BARE]]
    assert len(progress) == 8
    assert all(load.clips > 0 for each in (*figures.batches, *figures.singles) for load in each.values())
    assert len(figures.one_client.outside_s) == len(figures.one_client.latencies_s) > 0
    assert figures.soak is not None
    assert figures.soak.load.failures == ()
    report = build_report({}, clip, 1, figures, bars_of(figures))
    assert report["batches"]["servers"][DAEMON]["daemon_ratio"] == 1
    assert len(report["soak"]["rss_mb"]) >= 2
