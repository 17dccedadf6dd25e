"""One connection to a live source: opening it, and its frames as they arrive."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from pipeline_ver2.config_live import LiveConfig
from pipeline_ver2.errors import SourceLost
from pipeline_ver2.live_address import NETWORK_SCHEMES, STANDARD_INPUT, LiveSource, device_of, scheme_of
from pipeline_ver2.live_body import Allow, Body, HttpBody, InputBody
from pipeline_ver2.probe import Header, open_container

_PROTOCOLS = "rtsp,rtsps,rtp,udp,srtp,http,https,tcp,tls,crypto,httpproxy"  # a playlist names no local files
_UNTIMED_FORMATS = frozenset({"mpjpeg", "mjpeg", "jpeg_pipe"})  # their timestamps are counted, not measured
_ONE_BY_ONE = {"http_persistent": "0", "http_multiple": "0"}  # FFmpeg reuses none but its own connections
_MOST_UNDECODABLE = 60
_LONGEST_PAUSE_S = 5.0  # in a file: more is a jump of its timestamps


class Connection:
    """A live source, open within its `with`. One thread opens it, takes its frames and closes it.

    Args:
        source: What to open.
        settings: Time limits.
        clock: Seconds that never jump, the clock of the run.
        stop: When it is set, no more frames come.
        allow: Says where we may go. FFmpeg goes its own ways when RTSP leads it on.

    Raises:
        SourceLost: On entry: it cannot be opened, or is no video.
        OSError, FFmpegError, http.client.HTTPException: As the system says.
    """

    def __init__(
        self,
        source: LiveSource,
        settings: LiveConfig,
        clock: Callable[[], float],
        stop: threading.Event,
        allow: Allow | None = None,
    ) -> None:
        self._source, self._settings, self._clock, self._stop = source, settings, clock, stop
        self._allow = allow
        self._body: Body | None = None
        self._bodies: list[HttpBody] = []
        self._container: InputContainer | None = None

    def __enter__(self) -> Self:
        try:
            self._container = self._open()
            self._stream = _video_of(self._container, self._source.name)
        except BaseException:
            self.close()
            raise
        self.header = Header.read(self._container, self._stream)
        timed = self.header.timestamps == "container" and self._container.format.name not in _UNTIMED_FORMATS
        self._timed = timed or self._source.is_paced
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ends(self) -> bool:
        """Whether it has an end of its own, so that coming there is no loss."""
        return self._source.is_paced or self._source.address == STANDARD_INPUT or self.header.duration_s is not None

    @property
    def codec(self) -> str:
        """The video codec's name."""
        return self._stream.codec.canonical_name

    def frames(self) -> Iterator[tuple[av.VideoFrame, Fraction | None, float]]:
        """Each frame as stored, its timestamp in seconds (None where it has none), and when it arrived.

        Raises:
            SourceLost: No frame came for `read_timeout_s`, or none could be decoded.
            OSError, FFmpegError, http.client.HTTPException: As the system says.
        """
        seen_at, undecodable, seen = self._clock(), 0, False
        for packet in self._packets():
            arrived_s = self._clock()
            try:
                pictures = packet.decode() if packet.stream.index == self._stream.index else []
                undecodable = 0 if pictures else undecodable
            except FFmpegError:
                pictures, undecodable = [], undecodable + 1
            for picture in pictures:
                if isinstance(picture, av.VideoFrame):
                    yield picture, self._stamp(picture), arrived_s
            if self._stop.is_set():
                return
            if seen and undecodable > _MOST_UNDECODABLE:  # before the first, it may just have begun between key frames
                raise SourceLost(f"{undecodable} packets in a row cannot be decoded")
            if pictures:
                seen_at, seen = self._clock(), True
            if self._clock() - seen_at > self._settings.read_timeout_s:
                raise SourceLost(f"no picture for {self._settings.read_timeout_s:g} s")

    def abort(self) -> None:
        """Have a read that waits end where that can be done; from any thread."""
        if (body := self._body) is not None:
            body.abort()

    def close(self) -> None:
        """Release the decoder and the connection."""
        if self._container is not None:
            self._container.close()
        for body in self._bodies:  # FFmpeg forgets to close some after an error
            body.close()

    def _open(self) -> InputContainer:
        address = self._source.address
        if self._source.is_paced:
            return open_container(Path(address))
        if (device := device_of(address)) is not None:
            return self._av_open(device, format="v4l2")
        if address == STANDARD_INPUT:
            self._body = InputBody(sys.stdin.fileno())
            return self._av_open(self._body)
        if scheme_of(address) not in {"http", "https"}:
            if self._allow is not None:
                self._allow(address)
            return self._av_open(address, {"rtsp_transport": "tcp"})
        body = self._fetch(address)
        if body.is_playlist():
            self._body = None
            body.close()
            if self._allow is None:
                return self._av_open(address)
            return self._av_open(body.url, _ONE_BY_ONE, format="hls", fetch=self._fetch)
        return self._av_open(body)

    def _fetch(self, url: str, _flags: int = 0, options: Mapping[str, str] | None = None) -> HttpBody:
        """The body of a URL, which from now on is what a read waits for."""
        if self._stop.is_set():
            raise SourceLost("it is to stop")
        limits = self._settings
        body = HttpBody(
            url,
            open_timeout_s=limits.open_timeout_s,
            read_timeout_s=limits.read_timeout_s,
            allow=self._allow,
            part=_range_of(options or {}),
        )
        self._body = body
        self._bodies = [*(each for each in self._bodies if not each.is_closed), body]
        return body

    def _av_open(
        self,
        what: str | Body,
        options: dict[str, str] | None = None,
        *,
        format: str | None = None,
        fetch: Callable[[str, int, Mapping[str, str]], Body] | None = None,
    ) -> InputContainer:
        """Open it; `fetch` takes the place of FFmpeg's own connections."""
        limits = {"analyzeduration": "1000000"}
        if isinstance(what, str) and scheme_of(what) in NETWORK_SCHEMES:
            limits["protocol_whitelist"] = _PROTOCOLS
        return av.open(
            what,
            "r",
            format=format,
            metadata_errors="replace",
            io_open=fetch,
            container_options={**limits, **(options or {})},
            timeout=(self._settings.open_timeout_s, self._settings.read_timeout_s),
        )

    def _packets(self) -> Iterator[Packet[Any]]:
        """All packets: among the video's alone it could not be seen that only sound comes."""
        if self._container is None:
            raise RuntimeError("unreachable: an open connection has a container")
        with closing(_demux(self._container)) as packets:
            yield from self._paced(packets) if self._source.is_paced else packets

    def _paced(self, packets: Iterator[Packet[Any]]) -> Iterator[Packet[Any]]:
        """Each packet of a file when a camera would have sent it."""
        begun: float | None = None
        for packet in packets:
            if packet.stream.index == self._stream.index and packet.dts is not None:
                due_s, now = float(packet.dts * packet.time_base), self._clock()
                begun = now - due_s if begun is None else begun
                wait_s = begun + due_s - now
                if wait_s > _LONGEST_PAUSE_S or wait_s < -_LONGEST_PAUSE_S:
                    begun = now - due_s
                elif wait_s > 0 and self._stop.wait(wait_s):
                    return
            yield packet

    def _stamp(self, picture: av.VideoFrame) -> Fraction | None:
        if not self._timed or picture.pts is None:
            return None
        return picture.pts * (picture.time_base or self.header.time_base)


def _range_of(options: Mapping[str, str]) -> str | None:
    """The header `Range` for FFmpeg's options of HTTP; a segment of a playlist may be a part of a file."""
    if "end_offset" not in options:
        return None
    return f"bytes={int(options.get('offset', 0))}-{int(options['end_offset']) - 1}"


def _demux(container: InputContainer) -> Generator[Packet[Any], None, None]:
    yield from container.demux()


def _video_of(container: InputContainer, name: str) -> VideoStream:
    best = container.streams.best("video")
    if not isinstance(best, VideoStream) or best.codec_context is None:
        raise SourceLost(f"{name}: no video stream")
    best.thread_type, best.thread_count = "SLICE", 1
    return best
