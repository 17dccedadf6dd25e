"""The thread that keeps a live source open: what it loses it opens again, later each time."""

from __future__ import annotations

import http.client
import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import av
from av.error import FFmpegError

from pipeline_ver2.config_live import LiveConfig, Reconnect
from pipeline_ver2.errors import SourceLost, ZroactError
from pipeline_ver2.frame_buffer import FrameBuffer, LiveFrame
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.live_body import Allow
from pipeline_ver2.live_clock import LiveClock
from pipeline_ver2.live_source import Connection
from pipeline_ver2.probe import Orientation, VideoInfo
from pipeline_ver2.results import GapRecord

log = logging.getLogger(__name__)

_ERRORS = (SourceLost, FFmpegError, OSError, http.client.HTTPException, ValueError)


@dataclass(slots=True)
class LiveReport:
    """What a reader saw so far; written by its thread alone."""

    frames_decoded: int = 0
    last_s: float = 0.0
    gaps: int = 0
    resized: int = 0
    recoded: int = 0


class Backoff:
    """Waits that double from the first to the longest, each up to a quarter longer by chance."""

    def __init__(self, limits: Reconnect) -> None:
        self._limits = limits
        self._next_s = limits.first_wait_s

    def reset(self) -> None:
        """What was waited for is there."""
        self._next_s = self._limits.first_wait_s

    def next_s(self) -> float:
        """The next wait."""
        wait_s = min(self._next_s, self._limits.max_wait_s)
        self._next_s = 2 * wait_s
        return wait_s * random.uniform(1, 1.25)  # noqa: S311 - so that many streams do not come back at once


class LiveReader:
    """Reads a source into a buffer until it ends or `stop`.

    Args:
        source: What is read.
        settings: Time limits.
        buffer: Takes frames and gaps.
        clock: The run's clock.
        open_within_s: How long the first picture may take, all tries together; later ones may take for ever.
        allow: Says where we may go.
    """

    def __init__(
        self,
        source: LiveSource,
        settings: LiveConfig,
        buffer: FrameBuffer,
        clock: Callable[[], float],
        *,
        open_within_s: float,
        allow: Allow | None = None,
    ) -> None:
        self._source, self._settings, self._buffer, self._clock = source, settings, buffer, clock
        self._open_within_s = open_within_s
        self._allow = allow
        self._backoff = Backoff(settings.reconnect)
        self._times = LiveClock()
        self._stop = threading.Event()
        self._connection: Connection | None = None
        self._gap: GapRecord | None = None
        self._size = (0, 0)
        self._codec = ""
        self._thread = threading.Thread(target=self._run, name="live source", daemon=True)
        self.report = LiveReport()
        self.opened: Future[tuple[VideoInfo, Orientation]] = Future()
        """What the source is, once it gave its first picture, or why there is none."""
        self.opened.set_running_or_notify_cancel()  # whoever waits for it may give up, but not take it back

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """Have it end; whether it did within `wait_s`. What FFmpeg waits for itself ends by `read_timeout_s`."""
        self._stop.set()
        self._buffer.close()
        if (connection := self._connection) is not None:
            connection.abort()
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    @property
    def clock_jumps(self) -> int:
        """How often the source's timestamps jumped."""
        return self._times.jumps

    @property
    def repeated(self) -> int:
        """How many frames came out of order or twice, and were left out."""
        return self._times.repeated

    def _run(self) -> None:
        error: ZroactError | None = None
        begun = self._clock()
        try:
            while (lost := self._follow()) is not None and not self._stop.is_set():
                wait_s = self._lose(lost)
                if not self.opened.done() and self._clock() + wait_s - begun > self._open_within_s:
                    error = SourceLost(f"{self._source.name}: {lost}")
                    break
                if self._stop.wait(wait_s):
                    break
        except ZroactError as known:
            error = known
        except BaseException as unknown:
            error = SourceLost(f"{self._source.name}: {type(unknown).__name__}: {unknown}")
            raise
        finally:
            if not self.opened.done():
                self.opened.set_exception(error or SourceLost(f"{self._source.name}: no picture"))
            self._buffer.finish(error)

    def _follow(self) -> str | None:
        """Read one connection until it ends; why it was lost, or None if it is over."""
        try:
            connection = Connection(self._source, self._settings, self._clock, self._stop, self._allow)
            self._connection = connection  # before it is open: opening waits for the source, too
            with connection:
                self._times.connect(1 / connection.header.rate)
                for picture, stamp, arrived_s in connection.frames():
                    self._backoff.reset()
                    self._see(connection, picture)
                    time = self._times.place(stamp, arrived_s)
                    if time is None:
                        continue
                    self.report.last_s = float(time)
                    self._regain()
                    if not self._buffer.put(LiveFrame(picture, time, arrived_s)):
                        return None
                if connection.ends:
                    return None
        except _ERRORS as error:
            said = str(error.strerror if isinstance(error, FFmpegError) else error) or type(error).__name__
            said = said.replace(self._source.address, self._source.name)  # an address may hold a password
            if not self._source.reconnects:
                raise SourceLost(f"{self._source.name}: {said}") from error
            return said
        finally:
            self._connection = None
        return "the source ended"

    def _see(self, connection: Connection, picture: av.VideoFrame) -> None:
        """Note what the source is, and that it changed."""
        self.report.frames_decoded += 1
        size, codec = (picture.width, picture.height), connection.codec
        if not self.opened.done():
            self._size, self._codec = size, codec
            self.opened.set_result(self._describe(connection, picture))
        if size != self._size:
            self.report.resized += 1
            log.warning("%s: the frame size changed from %sx%s to %sx%s", self._source.name, *self._size, *size)
            self._size = size
        if codec != self._codec:
            self.report.recoded += 1
            log.warning("%s: the codec changed from %s to %s", self._source.name, self._codec, codec)
            self._codec = codec

    def _describe(self, connection: Connection, picture: av.VideoFrame) -> tuple[VideoInfo, Orientation]:
        orientation, header = Orientation.of(picture), connection.header
        width, height = (picture.width, picture.height)[:: -1 if orientation.transpose else 1]
        info = VideoInfo(
            path=Path(self._source.name),
            width=width,
            height=height,
            duration_s=None,
            fps=header.fps,
            rotation=orientation.degrees,
            codec=connection.codec,
            timestamps=header.timestamps,
            frames_header=None,
        )
        return info, orientation

    def _lose(self, reason: str) -> float:
        """Tell that the source is away; returns how long to wait before it is opened again."""
        wait_s = self._backoff.next_s()
        log.warning("%s: %s; opening it again in %.1f s", self._source.name, reason, wait_s)
        if self._times.last is None:
            return wait_s
        if self._gap is None:
            self._gap = GapRecord(index=self.report.gaps, start_s=self.report.last_s, reason=reason, attempts=1)
            self.report.gaps += 1
            self._buffer.put(self._gap)
        else:
            self._gap = self._gap.model_copy(update={"attempts": self._gap.attempts + 1})
        return wait_s

    def _regain(self) -> None:
        """Tell that the source is back, if it was away."""
        if self._gap is None:
            return
        ended = self._gap.model_copy(update={"end_s": self.report.last_s})
        log.warning("%s: back after %.1f s", self._source.name, self.report.last_s - ended.start_s)
        self._buffer.put(ended)
        self._gap = None
