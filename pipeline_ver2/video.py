"""Reading a video: its frames in order, their times, upright RGB, and what is damaged.

One sequential pass without seeks. Times come from presentation timestamps; 0 is the first video frame.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

import av
import numpy as np
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream
from numpy.typing import NDArray

from pipeline_ver2.errors import VideoError
from pipeline_ver2.pictures import RgbConverter, has_known_matrix
from pipeline_ver2.probe import Header, Orientation, VideoInfo, open_video

_MAX_READ_FAILURES = 100
_BACK_STEPS = 3  # so many frames back is a new timeline, less is a frame out of order
_FORWARD_JUMP_S = Fraction(600)
_SHORTFALL = 0.9


@dataclass(slots=True)
class ExtractionReport:
    """Filled while a video is read; complete once the last frame was taken.

    `damaged` holds (start_s, end_s) on the video's own timeline: from the first undecodable frame to the next
    clean intra frame. `warnings` holds all else worth saying, none of which makes a result wrong.
    `frames_decoded` counts source frames, `frames_grid` grid frames, `last_s` is the last source frame's time.
    """

    frames_decoded: int = 0
    frames_grid: int = 0
    last_s: float = 0.0
    damaged: list[tuple[float, float]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def fps(self) -> float | None:
        """Measured frames per second; None with fewer than two frames."""
        return (self.frames_decoded - 1) / self.last_s if self.last_s > 0 else None


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """A decoded frame as stored (not upright), and its time in seconds since the first frame."""

    picture: av.VideoFrame
    time: Fraction


class Timeline:
    """Turns timestamps of decoded frames into times: 0 at the first frame, always growing."""

    def __init__(self, time_base: Fraction, step: Fraction, *, estimated: bool) -> None:
        self.step = step
        self.last: Fraction | None = None
        self.repeated = self.missing = self.jumps = 0
        self._time_base = time_base
        self._estimated = estimated
        self._origin: Fraction | None = None

    @property
    def origin(self) -> Fraction:
        """What the file calls the time that is 0 here."""
        return self._origin or Fraction(0)

    @property
    def expected(self) -> Fraction:
        """Where the next frame would be at the file's rate."""
        return Fraction(0) if self.last is None else self.last + self.step

    def locate(self, stamp: int | None) -> Fraction:
        """Time of a timestamp, or of the next frame where that says nothing."""
        if stamp is None or self._origin is None or self._estimated:
            return self.expected
        return max(stamp * self._time_base - self._origin, Fraction(0))

    def place(self, stamp: int | None) -> Fraction | None:
        """Time of the next decoded frame; None if it repeats or precedes the frame before it."""
        time = self.expected
        if self._estimated:
            pass
        elif stamp is None:
            self.missing += 1
        elif self._origin is None:
            self._origin = stamp * self._time_base - time
        elif self.last is not None:
            wanted = stamp * self._time_base - self._origin
            ahead = wanted - self.last
            if -_BACK_STEPS * self.step < ahead <= 0:
                self.repeated += 1
                return None
            if 0 < ahead <= _FORWARD_JUMP_S:
                time = wanted
            else:
                self.jumps += 1
                self._origin += wanted - time
        self.last = time
        return time


class Damage:
    """Adds damaged ranges to a list: each from the first bad frame to the next clean intra frame."""

    def __init__(self, ranges: list[tuple[float, float]]) -> None:
        self._ranges = ranges
        self._start: Fraction | None = None
        self._until = Fraction(0)

    def hit(self, time: Fraction) -> None:
        """A frame at this time is missing or corrupt."""
        self._start = time if self._start is None else min(self._start, time)
        self._until = max(self._until, time)

    def clean_key(self, time: Fraction) -> None:
        """An intra frame came out whole: what came before it no longer matters."""
        if self._start is not None and time > self._until:
            self.close(time)

    def close(self, end: Fraction) -> None:
        """End the open range, if there is one."""
        if self._start is not None:
            self._ranges.append((float(self._start), float(max(end, self._until))))
            self._start = None


class VideoReader:
    """Decodes a file once, from the first frame to the last. Not thread-safe; one call at a time.

    With more than one thread only the slices of one frame are decoded together: frame threads would report
    damage late and at another time, and lose frames at a truncated end.

    Raises:
        VideoError: On opening: not a file, not a video, or not one frame of it can be decoded.
    """

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        self.report = ExtractionReport()
        self._path = path
        self._container, self._stream = open_video(path)
        self._stream.thread_type = "SLICE"
        self._stream.thread_count = threads or 1
        self._header = Header.read(self._container, self._stream)
        self._estimated = self._header.timestamps == "estimated"
        self._timeline = Timeline(self._header.time_base, 1 / self._header.rate, estimated=self._estimated)
        self._by_decode_order = self._container.format.name == "avi"  # it stores no presentation timestamps
        self._damage = Damage(self.report.damaged)
        self._early: list[int | None] = []  # stamps of packets that failed before the first frame came out
        self._skipped = self._lead_in = 0
        self._resized = self._strange_colour = self._finished = False
        self._pictures = self._decode()
        try:
            first = self._first()
        except BaseException:
            self.close()
            raise
        self._ahead: av.VideoFrame | None = first
        self._size = (first.width, first.height)
        self.orientation = Orientation.of(first)
        self.info = self._describe()
        self._converter = RgbConverter((self.info.width, self.info.height), self.orientation)

    def _first(self) -> av.VideoFrame:
        picture = next(self._pictures, None)
        if picture is None:
            raise VideoError(f"{self._path}: no frame of the video could be decoded")
        return picture

    def _describe(self) -> VideoInfo:
        width, height = self._size[::-1] if self.orientation.transpose else self._size
        return VideoInfo(
            path=self._path,
            width=width,
            height=height,
            duration_s=self._header.duration_s,
            fps=self._header.fps,
            rotation=self.orientation.degrees,
            codec=self._stream.codec.canonical_name,
            timestamps=self._header.timestamps,
            frames_header=self._header.frames,
        )

    def next_frame(self) -> SourceFrame | None:
        """The next frame in order of time, or None after the last."""
        while (picture := self._take()) is not None:
            self.report.frames_decoded += 1
            self._resized |= (picture.width, picture.height) != self._size
            time = self._timeline.place(self._stamp(picture))
            if time is None:
                continue
            self._sort_early()
            self.report.last_s = float(time)
            if picture.is_corrupt:
                self._damage.hit(time)
            elif picture.key_frame:
                self._damage.clean_key(time)
            return SourceFrame(picture, time)
        self._finish()
        return None

    def rgb(self, picture: av.VideoFrame) -> NDArray[np.uint8]:
        """Convert a frame: `(height, width, 3)` uint8, RGB, upright, contiguous, of the size of `info`.

        Colours are read as `RgbConverter` says.
        """
        self._strange_colour |= not has_known_matrix(picture)
        return self._converter.rgb(picture)

    @property
    def origin_s(self) -> Fraction:
        """The container's time of the first frame, seconds; known once that was taken."""
        return self._timeline.origin

    @property
    def end_s(self) -> Fraction:
        """Where the frame after the last one taken would be, by the file's rate."""
        return self._timeline.expected

    @property
    def pixel_aspect(self) -> Fraction:
        """Width / height of one pixel of the upright frame."""
        aspect = self._stream.sample_aspect_ratio or Fraction(1)
        return 1 / aspect if self.orientation.transpose else aspect

    def close(self) -> None:
        """Release the decoder and the file."""
        self._pictures.close()
        self._container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> av.VideoFrame | None:
        if (ahead := self._ahead) is not None:
            self._ahead = None
            return ahead
        return next(self._pictures, None)

    def _decode(self) -> Generator[av.VideoFrame, None, None]:
        for packet in self._packets():
            self._skipped += packet.is_discard
            try:
                pictures = packet.decode()
            except FFmpegError:
                self._spoil(self._stamp(packet))
                continue
            if packet.is_corrupt:
                self._spoil(self._stamp(packet))
            yield from pictures

    def _packets(self) -> Iterator[Packet[VideoStream]]:
        for _ in range(_MAX_READ_FAILURES):
            try:
                yield from self._container.demux(self._stream)
            except FFmpegError:
                self._spoil(None)
            else:
                return

    def _stamp(self, item: av.VideoFrame | Packet[VideoStream]) -> int | None:
        return item.dts if self._by_decode_order else item.pts

    def _spoil(self, stamp: int | None) -> None:
        if self._timeline.last is None:
            self._early.append(stamp)
        else:
            self._damage.hit(self._timeline.locate(stamp))

    def _sort_early(self) -> None:
        """With the first frame known, tell what failed after it from a recording that begins between intra frames."""
        for stamp in self._early:
            time = self._timeline.locate(stamp)
            if stamp is None or time == 0 or self._estimated:
                self._lead_in += 1
            else:
                self._damage.hit(time)
        self._early.clear()

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._damage.close(self._timeline.expected)
        self.report.warnings.extend(self._warnings())

    def _warnings(self) -> Iterator[str]:
        report, timeline = self.report, self._timeline
        if self._lead_in:
            yield f"{self._lead_in} packets before the first whole frame could not be decoded"
        if timeline.repeated:
            yield f"{timeline.repeated} frames with a repeated or earlier timestamp were dropped"
        if timeline.missing and not self._by_decode_order:
            yield f"{timeline.missing} frames without a timestamp were placed by the frame rate"
        if timeline.jumps:
            yield f"the timestamps jump {timeline.jumps} times; the video goes on without the gaps"
        if self._resized:
            yield "the frame size changes; frames were scaled to the size of the first"
        if self._strange_colour:
            yield "the colour matrix is not supported; colours were read as BT.601"
        if self._estimated:
            yield f"no timestamps in the file; times are estimated at {float(self._header.rate):g} frames/s"
        promised_frames, promised_s = self._header.frames, self._header.own_duration_s
        seen, seen_s = report.frames_decoded + self._skipped, float(timeline.expected)
        if promised_frames and seen < _SHORTFALL * promised_frames:
            yield f"the header promises {promised_frames} frames, {seen} are there"
        elif promised_s and seen_s < _SHORTFALL * promised_s - float(timeline.step):
            yield f"the header promises {promised_s:.2f} s, {seen_s:.2f} s are there"
