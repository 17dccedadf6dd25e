"""Keyframe clips pulled out of a video by one thread, which opens, advances and closes the decoder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.config import Config
from pipeline_ver2.main import ClipBuilder, ExtractionReport, FrameExtractor, TimingRecorder, VideoInfo
from pipeline_ver2.prompts import encode_image

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyframeClip:
    """A keyframe with all that the stages need of it.

    Attributes:
        key_index: The keyframe's number in the grid, from 1.
        time_s: Source timestamp of the frame shown.
        clip: `(T, H, W, 3)` uint8 RGB at the model's size, oldest first, ending at the keyframe.
        jpeg: The upright frame, encoded for Stage 2; full-size pixels do not leave the decoding thread.
        arrived_s: When the frame of a live source arrived, on the run's clock.
    """

    key_index: int
    time_s: float
    clip: NDArray[np.uint8]
    jpeg: bytes
    arrived_s: float | None = None


class Decoder:
    """An async context manager around a `FrameExtractor`.

    Args:
        path: The video.
        config: Grid, clip and image settings.
        image_size: (height, width) of the detector's input.
        recorder: Takes the spans `decode` and `preprocess`.
        executor: Where decoding runs; it must have one thread. None makes one.

    Raises:
        VideoError: On entry, when the file cannot be used as a video.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        image_size: tuple[int, int],
        recorder: TimingRecorder,
        executor: Executor | None = None,
    ) -> None:
        self._path, self._config, self._image_size, self._recorder = path, config, image_size, recorder
        self._clips = ClipBuilder(config.stage1.clip_length, config.stage1.sampling_rate)
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._stop = threading.Event()
        self._extractor: FrameExtractor | None = None

    @property
    def info(self) -> VideoInfo:
        """The source as it was found."""
        return self._opened.info

    @property
    def report(self) -> ExtractionReport:
        """What was decoded so far; it grows while clips are pulled."""
        return self._opened.report

    async def next_clip(self) -> KeyframeClip | None:
        """The next keyframe's clip, or None at the end. One hop to the thread decodes up to the next keyframe."""
        return await self._call(self._next_clip)

    async def __aenter__(self) -> Self:
        try:
            self._extractor = await self._call(self._open)
        except BaseException:
            self._executor.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A hop under way ends at its next frame; the close waits behind it in the same thread.
        self._stop.set()
        try:
            await asyncio.shield(self._call(self._opened.close))
        finally:
            self._executor.shutdown(wait=False)

    @property
    def _opened(self) -> FrameExtractor:
        if self._extractor is None:
            raise RuntimeError("the decoder is used outside its `async with`")
        return self._extractor

    def _call(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _open(self) -> FrameExtractor:
        return FrameExtractor(
            self._path,
            grid_fps=self._config.pipeline.grid_fps,
            keyframe_interval=self._config.pipeline.keyframe_interval,
            model_size=self._image_size,
            recorder=self._recorder,
        )

    def _next_clip(self) -> KeyframeClip | None:
        settings = self._config.pipeline
        while not self._stop.is_set():
            frame = self._opened.next_frame()
            if frame is None:
                return None
            clip = self._clips.push(frame)
            if clip is None or frame.key_index is None or frame.full is None:
                continue
            with self._recorder.span("preprocess", key_index=frame.key_index):
                jpeg = encode_image(frame.full, max_px=settings.image_max_px, quality=settings.jpeg_quality)
            return KeyframeClip(frame.key_index, frame.time_s, clip, jpeg)
        return None
