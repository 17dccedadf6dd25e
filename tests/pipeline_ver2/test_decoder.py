"""Keyframe clips pulled out of a video by one thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from pipeline_ver2.config import load_config
from pipeline_ver2.decoder import Decoder, KeyframeClip
from pipeline_ver2.errors import VideoError
from pipeline_ver2.main import TimingRecorder
from tests.conftest import FRAMES

CONFIG = load_config(None, {}, environ={})
SIZE = (32, 48)


async def all_clips(decoder: Decoder) -> list[KeyframeClip]:
    """Everything the decoder gives."""
    clips = []
    while (clip := await decoder.next_clip()) is not None:
        clips.append(clip)
    return clips


async def test_every_keyframe_comes_with_its_clip_and_picture(clip: Path) -> None:
    """13 keyframes, clips of 16 frames at the model's size, a full-size JPEG each."""
    async with Decoder(clip, CONFIG, SIZE, TimingRecorder()) as decoder:
        clips = await all_clips(decoder)

        assert [each.key_index for each in clips] == list(range(11, FRAMES, 11))
        assert {each.clip.shape for each in clips} == {(16, *SIZE, 3)}
        assert decoder.report.frames_grid == FRAMES
        assert await decoder.next_clip() is None
    picture = cv2.imdecode(np.frombuffer(clips[0].jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    assert picture.shape == (64, 96, 3)
    assert np.allclose(picture.mean(), clips[0].clip[-1].mean(), atol=3)


async def test_a_file_that_is_no_video_is_refused_on_entry(tmp_path: Path) -> None:
    """The error comes from entering, and the thread is gone."""
    (tmp_path / "text.mp4").write_text("not a video")
    executor = ThreadPoolExecutor(1)
    with pytest.raises(VideoError, match=r"text\.mp4"):
        async with Decoder(tmp_path / "text.mp4", CONFIG, SIZE, TimingRecorder(), executor):
            pass
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.submit(int)


@pytest.mark.fault("O9")
async def test_cancelled_while_decoding_it_closes_the_file(clip: Path) -> None:
    """A cancel in the middle of a hop ends the hop, closes the decoder in its thread and lets the thread go."""
    executor = ThreadPoolExecutor(1)
    entered = asyncio.Event()

    async def pull_for_ever() -> None:
        async with Decoder(clip, CONFIG, SIZE, TimingRecorder(), executor) as decoder:
            entered.set()
            while True:
                await decoder.next_clip()

    task = asyncio.create_task(pull_for_ever())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 2)
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.submit(int)
    assert not await asyncio.to_thread(_is_open, clip)


def _is_open(path: Path) -> bool:
    return any(descriptor.exists() and descriptor.samefile(path) for descriptor in Path("/proc/self/fd").iterdir())
