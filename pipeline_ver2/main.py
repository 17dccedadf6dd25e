"""Common utilities: the frame grid, keyframes, clips, the one resize, and timing records."""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline_ver2.probe import VideoInfo
from pipeline_ver2.video import ExtractionReport, SourceFrame, VideoReader

__all__ = [
    "ClipBuilder",
    "ExtractionReport",
    "FrameExtractor",
    "FrameGrid",
    "GridFrame",
    "Span",
    "TimingRecorder",
    "VideoInfo",
    "probe_video",
    "resize",
]


def resize(rgb: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Squash a frame to a size: bilinear with antialias, as YOWOv3's own training does. Everybody's resize.

    Large reductions average whole pixels first (`reducing_gap`), at most 2 levels away from the plain filter and
    twice as fast on 1080p.

    Args:
        rgb: `(H, W, 3)` uint8.
        size: `(height, width)` wanted; the aspect is not kept.

    Returns:
        `(height, width, 3)` uint8, the same array if the size is right already.
    """
    height, width = size
    if rgb.shape[:2] == size:
        return rgb
    picture = Image.fromarray(rgb)
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0))


def probe_video(path: Path) -> VideoInfo:
    """Open a file, decode its first frame, and say what it is.

    Raises:
        VideoError: Missing, empty, truncated, not a video, audio only, a single picture, or undecodable.
    """
    with VideoReader(path) as reader:
        return reader.info


@dataclass(frozen=True, slots=True)
class GridFrame:
    """One frame of the grid.

    Attributes:
        index: Number on the grid, from 0.
        time_s: Source timestamp of the frame shown; 0 is the first video frame.
        small: `(h, w, 3)` uint8 RGB at the model's size; shared where one source frame fills several grid frames.
        key_index: Counts from 1, `index + 1`, where this is a keyframe.
        full: `(height, width, 3)` uint8 RGB, upright source frame; keyframes only.
    """

    index: int
    time_s: float
    small: NDArray[np.uint8]
    key_index: int | None
    full: NDArray[np.uint8] | None


class FrameGrid:
    """The timeline resampled: grid frame n shows the last source frame with time <= (n + 0.5) / fps.

    The grid ends at n = round(last time * fps). Without a rate every source frame is a grid frame.
    """

    def __init__(self, fps: float | None) -> None:
        self._fps = None if fps is None else Fraction(str(fps))
        self._next = 0

    def fill(self, time: Fraction, following: Fraction | None) -> range:
        """Grid frames that show the source frame at `time`, given the time of the next one (None: it is the last)."""
        if self._fps is None:
            end = self._next + 1
        elif following is None:
            end = round(time * self._fps) + 1
        else:
            end = math.ceil(following * self._fps - Fraction(1, 2))
        filled = range(self._next, max(end, self._next))
        self._next = filled.stop
        return filled

    def skip_to(self, time: Fraction) -> range:
        """Grid frames that show nothing because what they would show is lost, up to the source frame at `time`."""
        if self._fps is None:
            return range(self._next, self._next)
        skipped = range(self._next, max(math.ceil(time * self._fps - Fraction(1, 2)), self._next))
        self._next = skipped.stop
        return skipped


class FrameExtractor:
    """Decodes a video once, in order, and hands out its grid frames. Not thread-safe: one call at a time.

    At most the frame shown, the one after it and the decoder's own reference frames are alive at once.

    Args:
        path: The video.
        grid_fps: Rate of the grid; None for the source's own frames.
        keyframe_interval: Every so many grid frames is a keyframe; a shorter video has one, its last frame.
        model_size: `(height, width)` of `GridFrame.small`.
        threads: Decoder threads; None for one.
        recorder: Takes spans "decode" (one per source frame) and "preprocess" (one per frame shown).

    Raises:
        VideoError: On opening, as `probe_video`.
    """

    def __init__(
        self,
        path: Path,
        *,
        grid_fps: float | None,
        keyframe_interval: int,
        model_size: tuple[int, int],
        threads: int | None = None,
        recorder: TimingRecorder | None = None,
    ) -> None:
        self._grid = FrameGrid(grid_fps)
        self._keyframe_interval = keyframe_interval
        self._model_size = model_size
        self._recorder = recorder
        with self._span("decode"):
            self._reader = VideoReader(path, threads=threads)
        self._frames = self._run()

    @property
    def info(self) -> VideoInfo:
        """What the file is."""
        return self._reader.info

    @property
    def report(self) -> ExtractionReport:
        """Counts, damage and warnings; complete once `next_frame` has returned None."""
        return self._reader.report

    def next_frame(self) -> GridFrame | None:
        """The next grid frame, or None after the last."""
        return next(self._frames, None)

    def close(self) -> None:
        """Release the decoder and the file."""
        self._frames.close()
        self._reader.close()

    def __iter__(self) -> Iterator[GridFrame]:
        return self._frames

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> Generator[GridFrame, None, None]:
        current = self._decode()
        while current is not None:
            following = self._decode()
            indices = self._grid.fill(current.time, following.time if following else None)
            if indices:  # a source frame that is shown nowhere is not converted
                yield from self._show(current, indices, is_last=following is None)
            current = following

    def _decode(self) -> SourceFrame | None:
        with self._span("decode"):
            return self._reader.next_frame()

    def _show(self, source: SourceFrame, indices: range, *, is_last: bool) -> Iterator[GridFrame]:
        with self._span("preprocess"):
            full = self._reader.rgb(source.picture)
            small = resize(full, self._model_size)
        for index in indices:
            self.report.frames_grid += 1
            key_index = self._key_index(index, is_last=is_last and index == indices[-1])
            yield GridFrame(index, float(source.time), small, key_index, None if key_index is None else full)

    def _key_index(self, index: int, *, is_last: bool) -> int | None:
        count = index + 1
        only_one = is_last and count < self._keyframe_interval
        return count if only_one or count % self._keyframe_interval == 0 else None

    def _span(self, name: str) -> AbstractContextManager[None]:
        return self._recorder.span(name) if self._recorder else nullcontext()


class ClipBuilder:
    """Keeps the last grid frames and cuts the clip that ends at each keyframe.

    The clip's frames are the documented `frame_paths[max(0, key_idx - i*sampling_rate - 1)]`, oldest first.
    """

    def __init__(self, clip_length: int, sampling_rate: int) -> None:
        self._clip_length = clip_length
        self._sampling_rate = sampling_rate
        self._recent: deque[NDArray[np.uint8]] = deque(maxlen=(clip_length - 1) * sampling_rate + 1)

    def push(self, frame: GridFrame) -> NDArray[np.uint8] | None:
        """Take the next grid frame; at a keyframe return its clip.

        Returns:
            `(clip_length, h, w, 3)` uint8 RGB, a copy, oldest first, last frame = the keyframe; before the start of
            the video the first frame repeats.
        """
        self._recent.append(frame.small)
        if frame.key_index is None:
            return None
        newest = len(self._recent) - 1
        steps = reversed(range(self._clip_length))
        return np.stack([self._recent[max(0, newest - step * self._sampling_rate)] for step in steps])


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from `start_s` to `end_s`, seconds since the recorder was made."""

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, int | float | str]


_NOTHING: Mapping[str, int | float | str] = MappingProxyType({})


class TimingRecorder:
    """Collects spans from any thread. Past `limit` spans some are only counted, so that memory stays bounded.

    These are the new ones, or with `keep_last` the oldest.
    """

    def __init__(self, limit: int = 200_000, *, keep_last: bool = False) -> None:
        self._limit = limit
        self._keep_last = keep_last
        self._start = time.perf_counter()
        # In columns: a long video has a hundred thousand spans, most of them without attributes.
        self._names: list[str] = []
        self._kinds, self._starts, self._ends = array("H"), array("d"), array("d")
        self._attributes: dict[int, Mapping[str, int | float | str]] = {}
        self._oldest = 0
        self._lock = threading.Lock()
        self.dropped = 0

    def now(self) -> float:
        """Seconds since the recorder was made, the clock of all spans."""
        return time.perf_counter() - self._start

    def add(self, name: str, start_s: float, end_s: float, **attributes: int | float | str) -> None:
        """Record a span measured with `now`."""
        with self._lock:
            if name not in self._names:
                self._names.append(name)
            kind, place = self._names.index(name), len(self._kinds)
            if place < self._limit:
                self._kinds.append(kind)
                self._starts.append(start_s)
                self._ends.append(end_s)
            else:
                self.dropped += 1
                if not self._keep_last:
                    return
                place, self._oldest = self._oldest, (self._oldest + 1) % self._limit
                self._kinds[place], self._starts[place], self._ends[place] = kind, start_s, end_s
                self._attributes.pop(place, None)
            if attributes:
                self._attributes[place] = attributes

    @contextmanager
    def span(self, name: str, **attributes: int | float | str) -> Iterator[None]:
        """Record the time of a `with` block, also when it raises."""
        start_s = self.now()
        try:
            yield
        finally:
            self.add(name, start_s, self.now(), **attributes)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Everything recorded so far, in the order it ended."""
        with self._lock:
            count = len(self._kinds)
            places = ((self._oldest + number) % count for number in range(count))
            return tuple(
                Span(self._names[self._kinds[p]], self._starts[p], self._ends[p], self._attributes.get(p, _NOTHING))
                for p in places
            )
