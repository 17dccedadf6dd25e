"""The sequential baseline: documented arithmetic, and the same results as the orchestrator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.main import clip_numbers, extract_to_files, keyframe_numbers, run_baseline
from pipeline_ver2.config import Config, load_config
from pipeline_ver2.errors import ConfigError, VideoError
from pipeline_ver2.job import Job
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import KeyframeRecord, Results
from pipeline_ver2.supervisor import Supervisor

DEMO_CLIP = Path(__file__).parents[2] / "serving" / "demo" / "clip.mp4"


def config_in(folder: Path, ports: tuple[int, int]) -> Config:
    """The embedded models on free ports, working under this folder."""
    return load_config(
        None,
        {
            "paths.work_dir": str(folder / "work"),
            "paths.media_roots": [str(folder)],
            "stage1.port": ports[0],
            "stage2.port": ports[1],
            "stage1.threads": 1,
            "stage2.threads": 1,
        },
        environ={},
    )


@pytest.fixture
async def config(tmp_path: Path, free_ports: tuple[int, int]) -> AsyncIterator[Config]:
    """Both daemons up with the embedded models."""
    settings = config_in(tmp_path, free_ports)
    async with Supervisor(settings):
        yield settings


def test_keyframes_are_the_documented_ones() -> None:
    """419 frames have 38 keyframes, 11 to 418; a short video has its last frame; one frame is enough."""
    assert keyframe_numbers(419, 11) == list(range(11, 419, 11))
    assert len(keyframe_numbers(419, 11)) == 38
    assert keyframe_numbers(7, 11) == [7]
    assert keyframe_numbers(1, 11) == [1]
    assert keyframe_numbers(22, 11) == [11, 22]


@pytest.mark.fault("A1")
@pytest.mark.fault("V10")
def test_clips_follow_the_documented_indexing() -> None:
    """`frame_paths[max(0, key_idx - i*sampling_rate - 1)]`, oldest first: no index wraps round."""
    for key_index, rate in ((11, 1), (16, 1), (418, 1), (3, 2), (40, 2), (1, 1)):
        paths = range(500)
        documented = [paths[max(0, key_index - i * rate - 1)] for i in range(16)]
        assert [number - 1 for number in clip_numbers(key_index, 16, rate)] == documented[::-1]


@pytest.mark.slow
@pytest.mark.parametrize(("frames", "suffix"), [("jpeg", "jpg"), ("png", "png")])
def test_every_grid_frame_becomes_a_file(tmp_path: Path, frames: str, suffix: str) -> None:
    """419 files, numbered from 1, with the time of each."""
    settings = config_in(tmp_path, (1, 2))
    extracted = extract_to_files(DEMO_CLIP, tmp_path / "frames", settings, "jpeg" if frames == "jpeg" else "png")

    assert len(extracted.paths) == len(extracted.times_s) == 419
    assert extracted.paths[0].name == f"frame_000001.{suffix}"
    assert extracted.paths[-1].name == f"frame_000419.{suffix}"
    assert all(path.stat().st_size for path in extracted.paths)
    assert extracted.times_s[10] == pytest.approx(10 / 30)


async def test_a_folder_stage_1_may_not_read_is_refused(tmp_path: Path) -> None:
    """The message names paths.media_roots before any frame is written."""
    settings = config_in(tmp_path / "inside", (1, 2))
    with pytest.raises(ConfigError, match=r"paths\.media_roots"):
        await run_baseline(DEMO_CLIP, tmp_path / "outside", settings)
    assert not (tmp_path / "outside").exists()


async def test_a_broken_video_leaves_no_frames(tmp_path: Path) -> None:
    """The error names the file; the frames folder is gone."""
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(VideoError, match=r"text\.mp4"):
        await run_baseline(tmp_path / "text.mp4", tmp_path / "out", config_in(tmp_path, (1, 2)))
    assert not (tmp_path / "out" / "frames").exists()


@pytest.mark.slow
async def test_orchestrator_and_baseline_agree_on_the_demo_clip(config: Config, tmp_path: Path) -> None:
    """Detections equal within 1e-3, answers equal; 38 keyframes, 10 batches, 13 slots, all ok, Stage 2 begins early."""
    sequential = await run_baseline(DEMO_CLIP, tmp_path / "sequential", config, frames="png")
    together = await run_pipeline(Job(DEMO_CLIP, tmp_path / "together"), config)

    assert_counts(sequential)
    assert_counts(together)
    assert len([record for record in together.keyframes if record.detections]) > 0
    for expected, actual in zip(sequential.keyframes, together.keyframes, strict=True):
        assert_same_detections(expected, actual)
    assert [slot.answer for slot in sequential.slots] == [slot.answer for slot in together.slots]
    assert together.timing.stage2_began_s is not None
    assert together.timing.stage1_ended_s is not None
    assert together.timing.stage2_began_s < together.timing.stage1_ended_s
    assert not await asyncio.to_thread((tmp_path / "sequential" / "frames").exists)


def assert_counts(results: Results) -> None:
    """The demo clip's documented numbers."""
    counts = results.counts
    assert results.state == "succeeded"
    assert (counts.frames_decoded, counts.frames_grid, counts.keyframes) == (419, 419, 38)
    assert (counts.batches, counts.slots, counts.ok) == (10, 13, 13)


def assert_same_detections(expected: KeyframeRecord, actual: KeyframeRecord) -> None:
    """Boxes within 1e-3 pixels, scores within 1e-3, the same labels."""
    assert (expected.key_index, expected.time_s) == (actual.key_index, actual.time_s)
    assert len(expected.detections) == len(actual.detections)
    for one, other in zip(expected.detections, actual.detections, strict=True):
        assert one.box == pytest.approx(other.box, abs=1e-3)
        assert [label.name for label in one.labels] == [label.name for label in other.labels]
        scores = [label.score for label in other.labels]
        assert [label.score for label in one.labels] == pytest.approx(scores, abs=1e-3)
