"""Pictures of a job's video at given times, cut out of it when somebody looks."""

from __future__ import annotations

import asyncio
import threading
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from pipeline_ver2.errors import NothingThere, QueueFull, VideoError
from pipeline_ver2.probe import Header, Orientation, open_video
from pipeline_ver2.prompts import encode_image
from pipeline_ver2.video import VideoReader

AT_ONCE = 2
MAX_WAITING = 64
LONGEST_S = 10.0
"""A video in which a frame is not found within this time keeps it."""

_SAME_FRAME = Fraction(1, 1000)  # times may have been rounded to milliseconds on their way here
_MAX_PX = 640 * 360
_QUALITY = 80


class FrameCutter:
    """Cuts frames in threads, a bounded number at a time."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def cut(self, video: Path, time_s: float) -> bytes:
        """The frame at a time as a JPEG of at most 640 x 360 pixels' area, upright.

        Args:
            video: The file.
            time_s: A source timestamp as results have it; 0 is the first frame.

        Raises:
            QueueFull: Too many wait already.
            NothingThere: There is no such frame, or it was not found in time.
        """
        if self._waiting >= MAX_WAITING:
            raise QueueFull(f"{self._waiting} pictures are waited for already", retry_after_s=1)
        self._waiting += 1
        try:
            async with self._places:
                return await self._in_thread(video, time_s)
        finally:
            self._waiting -= 1

    async def _in_thread(self, video: Path, time_s: float) -> bytes:
        search = _Search(video, time_s)
        work = asyncio.ensure_future(asyncio.to_thread(search.run))
        try:
            return await asyncio.shield(work)
        finally:  # the place is free when the thread has ended
            search.stop.set()
            await asyncio.wait([work])


class _Search:
    """One frame looked for: by a seek, and where times cannot be sought, from the beginning."""

    def __init__(self, video: Path, time_s: float) -> None:
        self._video, self._time_s = video, time_s
        self._wanted = Fraction(time_s)
        self._give_up_at = time.monotonic() + LONGEST_S
        self.stop = threading.Event()

    def run(self) -> bytes:
        """The frame as a JPEG; blocks.

        Raises:
            NothingThere: There is no such frame, or it was not found in time.
        """
        try:
            found = self._by_seek()
            if found is None:
                found = self._by_reading()
        except (VideoError, FFmpegError) as error:
            raise NothingThere("the video cannot be read any more") from error
        if found is None:
            raise NothingThere(f"no frame of the video at {self._time_s:g} s was found")
        return encode_image(found, max_px=_MAX_PX, quality=_QUALITY)

    def _by_seek(self) -> NDArray[np.uint8] | None:
        """None where the file has no timestamps, or no frame at just this time where it should be."""
        container, stream = open_video(self._video)
        with container:
            header = Header.read(container, stream)
            first = next(container.decode(stream), None)
            if header.timestamps == "estimated" or first is None or first.pts is None:
                return None
            origin = first.pts * header.time_base
            container.seek(int((origin + self._wanted) / header.time_base), stream=stream, backward=True)
            for picture in container.decode(stream):
                if picture.pts is None or self._is_over():
                    return None
                late = picture.pts * header.time_base - origin - self._wanted
                if late >= -_SAME_FRAME:
                    return _upright(picture) if late <= _SAME_FRAME and not picture.is_corrupt else None
        return None

    def _by_reading(self) -> NDArray[np.uint8] | None:
        with VideoReader(self._video) as reader:
            while not self._is_over() and (frame := reader.next_frame()) is not None:
                if frame.time >= self._wanted - _SAME_FRAME:
                    return reader.rgb(frame.picture) if frame.time <= self._wanted + _SAME_FRAME else None
        return None

    def _is_over(self) -> bool:
        return self.stop.is_set() or time.monotonic() > self._give_up_at


def _upright(picture: av.VideoFrame) -> NDArray[np.uint8]:
    """A decoded frame as `(h, w, 3)` uint8 RGB, upright."""
    rgb = picture.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
    return np.ascontiguousarray(Orientation.of(picture).apply(rgb))
