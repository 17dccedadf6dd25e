"""Pictures cut out of a video."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline_ver2.errors import NothingThere, QueueFull
from serving import frames
from serving.frames import FrameCutter
from tests.videos import base, ffmpeg, number_of, numbered, steady


async def number_at(video: Path, time_s: float) -> int:
    """The number of the frame that is given for a time."""
    encoded = await FrameCutter().cut(video, time_s)
    return number_of(np.asarray(Image.open(BytesIO(encoded))))


@pytest.mark.parametrize("number", [0, 1, 10, 29, 30, 31, 59])
async def test_the_frame_of_a_time(number: int) -> None:
    """The first, the last, and those around an intra frame; times may be rounded."""
    assert await number_at(base(), number / 30) == number
    assert await number_at(base(), round(number / 30, 3)) == number


async def test_a_video_that_does_not_begin_at_zero() -> None:
    """0 is its first frame, whatever the file calls it; so it is in a transport stream."""
    late = numbered("late.mp4", tuple(Fraction(5) + time for time in steady(30, 2)))
    stream = ffmpeg("late.ts", "-i", str(late), "-c", "copy")
    assert [await number_at(video, 40 / 30) for video in (late, stream)] == [40, 40]


async def test_a_video_without_timestamps() -> None:
    """It is read from its beginning."""
    bare = ffmpeg("bare.h264", "-i", str(base()), "-c", "copy", "-bsf:v", "h264_mp4toannexb")
    assert await number_at(bare, 0.0) == 0


@pytest.mark.parametrize("time_s", [-1.0, 0.016, 99.0])
async def test_no_frame_at_a_time(time_s: float) -> None:
    """Before the beginning, between two frames, behind the end."""
    with pytest.raises(NothingThere, match="no frame of the video at"):
        await FrameCutter().cut(base(), time_s)


async def test_a_video_that_is_gone(tmp_path: Path) -> None:
    """Missing, or something else by now."""
    (tmp_path / "text.mp4").write_text("no video")
    for name in ("missing.mp4", "text.mp4"):
        with pytest.raises(NothingThere, match="cannot be read"):
            await FrameCutter().cut(tmp_path / name, 0.0)


async def test_a_large_frame_is_made_small() -> None:
    """The picture of a full HD frame keeps its shape and has few pixels."""
    large = numbered("large-frames.mp4", steady(30, Fraction(1, 10)), scale=12)
    encoded = await FrameCutter().cut(large, 0.0)
    width, height = Image.open(BytesIO(encoded)).size
    assert height * width <= 640 * 360
    assert abs(width / height - 160 / 96) < 0.02


async def test_a_search_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up."""
    monkeypatch.setattr(frames, "LONGEST_S", 0.0)
    with pytest.raises(NothingThere, match="no frame"):
        await FrameCutter().cut(base(), 1.0)


async def test_too_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those over the bound are refused at once and may come again; the others are served."""
    monkeypatch.setattr(frames, "MAX_WAITING", 3)
    cutter = FrameCutter()
    results = await asyncio.gather(*(cutter.cut(base(), 0.0) for _ in range(5)), return_exceptions=True)
    assert [isinstance(result, QueueFull) for result in results] == [False, False, False, True, True]
    assert await cutter.cut(base(), 0.0)


async def test_a_cancelled_one_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits behind it is served."""
    monkeypatch.setattr(frames, "AT_ONCE", 1)
    cutter = FrameCutter()
    first = asyncio.create_task(cutter.cut(base(), 1.0))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await cutter.cut(base(), 0.0)
