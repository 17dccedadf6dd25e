"""Both stages as a run finds them, and what a run's results belong to."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline_ver2.errors import ConfigError
from pipeline_ver2.job import Job
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.results import sha256_of
from pipeline_ver2.stages import header_of, meet_stages
from tests.pipeline_ver2.conftest import settings_for
from tests.stand_ins import LABELS, Stages


async def test_results_belong_to_a_source_and_to_settings(stages: Stages, clip: Path, tmp_path: Path) -> None:
    """A file is told by its content, a live source by its name without secrets; settings by what decides results."""
    job = Job(clip, tmp_path)
    camera = replace(job, live=LiveSource("rtsp://me:secret@cam/1"))
    other = replace(job, live=LiveSource("rtsp://cam/1?key=secret"))
    config, sure = settings_for(stages), settings_for(stages, stage1__threshold=0.9)
    async with AsyncExitStack() as stack:
        met = await meet_stages(stack, config, job)
        assert met.detector.labels == LABELS
        file, live, same, surer = [
            await header_of(each, settings, met)
            for each, settings in ((job, config), (camera, config), (other, config), (job, sure))
        ]
    assert file.source_sha256 == sha256_of(clip)
    assert live == same != file
    assert surer.fingerprint != file.fingerprint


async def test_a_model_for_other_clips_is_refused(stages: Stages, clip: Path, tmp_path: Path) -> None:
    """Before anything is sent."""
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigError, match=r"stage1\.clip_length: is 8, but the model takes 16"):
            await meet_stages(stack, settings_for(stages, stage1__clip_length=8), Job(clip, tmp_path))
