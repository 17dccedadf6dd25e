"""Keyframe clips pulled out of a live source: the same seam as `Decoder`, and gaps beside clips.

One thread reads and decodes (`LiveReader`) and never waits for the stages, unless the policy is WAIT. Another, which is
asked for one clip at a time, puts what it finds in the buffer on the grid and makes clips of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from pipeline_ver2.config import Config
from pipeline_ver2.decoder import KeyframeClip
from pipeline_ver2.frame_buffer import BUFFER_FULL, FrameBuffer, LiveFrame
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.live_body import Allow
from pipeline_ver2.live_reader import LiveReader
from pipeline_ver2.losses import Losses
from pipeline_ver2.main import ClipBuilder, FrameGrid, GridFrame, TimingRecorder, VideoInfo, resize
from pipeline_ver2.pictures import RgbConverter
from pipeline_ver2.prompts import encode_image
from pipeline_ver2.results import GapRecord
from pipeline_ver2.video import ExtractionReport

log = logging.getLogger(__name__)

SOURCE_LOST = "source_lost"

_LOOK_S = 0.1
_STOP_WAIT_S = 1.0


class LiveDecoder:
    """An async context manager in which a live source is followed.

    Args:
        source: What is followed, and until when.
        config: Grid, clip, image and live settings.
        image_size: (height, width) of the detector's input.
        recorder: Its clock is the run's; takes the spans `preprocess`.
        losses: Counts frames and keyframes that could not be kept.
        allow: Says where we may go.

    Raises:
        SourceLost: On entry: no picture came within `pipeline.retry_for_s`. Later: a file or a pipe broke.
    """

    def __init__(
        self,
        source: LiveSource,
        config: Config,
        image_size: tuple[int, int],
        recorder: TimingRecorder,
        losses: Losses,
        allow: Allow | None = None,
    ) -> None:
        self._source, self._config, self._image_size = source, config, image_size
        self._recorder, self._losses = recorder, losses
        self._buffer = FrameBuffer(config.live.buffer_frames, source.policy, losses)
        self._reader = LiveReader(
            source,
            config.live,
            self._buffer,
            recorder.now,
            open_within_s=config.pipeline.retry_for_s,
            allow=allow,
        )
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="live clips")
        self._grid = FrameGrid(config.pipeline.grid_fps)
        self._clips = self._new_clips()
        self._current: LiveFrame | None = None
        self._ready: deque[KeyframeClip | GapRecord] = deque()
        self._info: VideoInfo | None = None
        self._converter: RgbConverter | None = None
        self._began_s = 0.0
        self._in_gap = self._stopped = False
        self._report = ExtractionReport()

    @property
    def info(self) -> VideoInfo:
        """The source as its first picture was."""
        if self._info is None:
            raise RuntimeError("the decoder is used outside its `async with`")
        return self._info

    @property
    def report(self) -> ExtractionReport:
        """What was decoded so far; it grows while clips are pulled."""
        self._report.frames_decoded = self._reader.report.frames_decoded
        self._report.last_s = self._reader.report.last_s
        self._report.warnings = self._warnings()
        return self._report

    @property
    def gaps(self) -> int:
        """How often the source was lost so far."""
        return self._reader.report.gaps

    async def next_clip(self) -> KeyframeClip | GapRecord | None:
        """The next keyframe's clip, the begin or end of a time without pictures, or None at the end."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._next)

    async def __aenter__(self) -> Self:
        self._reader.start()
        try:
            info, orientation = await asyncio.wrap_future(self._reader.opened)
        except BaseException:
            await self._stop()
            raise
        self._info = info
        self._converter = RgbConverter((info.width, info.height), orientation)
        self._began_s = self._recorder.now()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        self._stopped = True
        self._executor.shutdown(wait=False)
        stopping = asyncio.to_thread(self._reader.stop, _STOP_WAIT_S)
        if not await asyncio.shield(asyncio.ensure_future(stopping)):
            limit_s = self._config.live.read_timeout_s
            log.warning("%s: still reading; it is let go within %g s", self._source.name, limit_s)

    def _new_clips(self) -> ClipBuilder:
        return ClipBuilder(self._config.stage1.clip_length, self._config.stage1.sampling_rate)

    def _next(self) -> KeyframeClip | GapRecord | None:
        while not self._ready:
            if self._stopped or self._is_over():
                self._buffer.close()
                return None
            item, more = self._buffer.take(_LOOK_S)
            if isinstance(item, GapRecord):
                self._pass_gap(item)
            elif item is not None:
                self._pass_frame(item)
            elif not more:
                self._show(None)
                self._stopped = True
                return self._ready.popleft() if self._ready else None
        return self._ready.popleft()

    def _is_over(self) -> bool:
        """Whether the run was to last until now."""
        lasts_s, until = self._source.duration_s, self._source.until
        over = lasts_s is not None and self._recorder.now() - self._began_s >= lasts_s
        return over or (until is not None and datetime.now(UTC) >= until)

    def _pass_frame(self, frame: LiveFrame) -> None:
        if self._in_gap or frame.after_loss:
            self._show(None)
            self._skip(frame, SOURCE_LOST if self._in_gap else BUFFER_FULL)
            self._in_gap = False
        else:
            self._show(frame)
        self._current = frame

    def _pass_gap(self, gap: GapRecord) -> None:
        if gap.end_s is None:
            self._show(None)
            self._clips, self._in_gap = self._new_clips(), True
        self._ready.append(gap)

    def _skip(self, frame: LiveFrame, reason: str) -> None:
        interval = self._config.pipeline.keyframe_interval
        missing = self._grid.skip_to(frame.time)
        self._losses.add("keyframes", reason, missing.stop // interval - missing.start // interval)

    def _show(self, following: LiveFrame | None) -> None:
        """Put the current frame on the grid, now that the next is known, or known not to come."""
        current, self._current = self._current, None
        if current is None or self._converter is None:
            return
        indices = self._grid.fill(current.time, following.time if following else None)
        if not indices:  # a frame that is shown nowhere is not converted
            return
        interval = self._config.pipeline.keyframe_interval
        with self._recorder.span("preprocess"):
            full = self._converter.rgb(current.picture)
            small = resize(full, self._image_size)
        for index in indices:
            self._report.frames_grid += 1
            key_index = index + 1 if (index + 1) % interval == 0 else None
            clip = self._clips.push(GridFrame(index, float(current.time), small, key_index, None))
            if clip is None or key_index is None:
                continue
            settings = self._config.pipeline
            with self._recorder.span("preprocess", key_index=key_index):
                jpeg = encode_image(full, max_px=settings.image_max_px, quality=settings.jpeg_quality)
            self._ready.append(KeyframeClip(key_index, float(current.time), clip, jpeg, current.arrived_s))

    def _warnings(self) -> list[str]:
        report, reader = self._reader.report, self._reader
        told = {
            f"the source was away {report.gaps} times": report.gaps,
            f"the frame size changed {report.resized} times; frames were scaled to the first": report.resized,
            f"the codec changed {report.recoded} times": report.recoded,
            f"the timestamps jumped {reader.clock_jumps} times": reader.clock_jumps,
            f"{reader.repeated} frames with a repeated or earlier timestamp were left out": reader.repeated,
        }
        return [text for text, number in told.items() if number]
