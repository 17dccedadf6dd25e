"""The annotated video: boxes, labels and answers drawn on every frame of the source.

A second pass over the source. Every frame keeps its time; the result is an H.264 MP4 that browsers play.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import OutputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from pipeline_ver2.audio_track import AudioTrack
from pipeline_ver2.errors import ResultsError
from pipeline_ver2.painting import Between, Caption, KeyframeOverlay, Painter
from pipeline_ver2.probe import open_container
from pipeline_ver2.video import VideoReader

_TIME_BASE = Fraction(1, 90_000)
_BT709 = 1  # AVCOL_SPC_, AVCOL_PRI_ and AVCOL_TRC_BT709
_LIMITED = 1  # AVCOL_RANGE_MPEG


def annotate(
    source: Path,
    out: Path,
    *,
    keyframes: Sequence[KeyframeOverlay],
    captions: Sequence[Caption] = (),
    between: Between = "hold",
    threads: int | None = None,
    stop: threading.Event | None = None,
) -> list[str]:
    """Write an H.264 MP4 of the source with boxes and captions drawn in; `out` appears only when it is complete.

    Args:
        source: The video.
        out: The file to write, replaced if it exists.
        keyframes: In any order; boxes in pixels of the upright source frame.
        captions: Where two overlap, the one that starts later is shown.
        between: Where boxes are between two keyframes.
        threads: Of decoder and encoder; None for one and the encoder's choice.
        stop: When set, writing stops after the frame in hand and nothing is left behind.

    Returns:
        Warnings: damage of the source, audio that was encoded again or left out.

    Raises:
        VideoError: The source cannot be read.
        ResultsError: `out` cannot be written.
    """
    part = out.with_name(f"{out.name}.part")
    try:
        with VideoReader(source, threads=threads) as reader:
            warnings = _write(reader, part, Painter(keyframes, captions, between), threads=threads, stop=stop)
        if stop is None or not stop.is_set():
            part.replace(out)
    except (FFmpegError, OSError) as error:
        raise ResultsError(f"{out}: the annotated video cannot be written ({error.strerror or error})") from error
    finally:
        part.unlink(missing_ok=True)
    return warnings


def _write(
    reader: VideoReader, part: Path, painter: Painter, *, threads: int | None, stop: threading.Event | None
) -> list[str]:
    with ExitStack() as stack:
        frame = reader.next_frame()
        output = stack.enter_context(
            av.open(f"file:{part.absolute()}", "w", format="mp4", container_options={"movflags": "+faststart"})
        )
        encoder = _Encoder(output, reader, threads)
        source = stack.enter_context(open_container(reader.info.path))
        audio = AudioTrack(source, reader.origin_s, output)
        while frame is not None and not (stop and stop.is_set()):
            picture = reader.rgb(frame.picture)
            painter.draw(picture, float(frame.time))
            encoder.write(picture, frame.time)
            audio.write_until(frame.time)
            frame = reader.next_frame()
        audio.write_until(reader.end_s)
        encoder.finish(reader.end_s)
    damage = [f"damaged from {start:.2f} s to {end:.2f} s" for start, end in reader.report.damaged]
    return [*damage, *reader.report.warnings, *audio.warnings]


class _Encoder:
    """Encodes upright RGB frames as H.264 that browsers play: 4:2:0, even sizes, BT.709 limited range."""

    def __init__(self, output: OutputContainer, reader: VideoReader, threads: int | None) -> None:
        # Without B-frames decoding and showing order are one, and MP4 can tell when the last frame ends.
        options = {"preset": "veryfast", "crf": "23", "bf": "0", **({"threads": str(threads)} if threads else {})}
        rate = Fraction(reader.info.fps or 30).limit_denominator(1001)
        stream: VideoStream = output.add_stream("libx264", rate=rate, options=options)
        stream.width = reader.info.width + reader.info.width % 2
        stream.height = reader.info.height + reader.info.height % 2
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.time_base = _TIME_BASE
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        context.color_range = _LIMITED
        if reader.pixel_aspect != 1:
            context.sample_aspect_ratio = reader.pixel_aspect
        self._output, self._stream = output, stream
        self._reformatter = VideoReformatter()
        self._last = -1
        self._held: Packet[VideoStream] | None = None

    def write(self, rgb: NDArray[np.uint8], time: Fraction) -> None:
        """Encode one `(h, w, 3)` frame; an odd side is padded by one repeated line."""
        height, width = rgb.shape[:2]
        if height % 2 or width % 2:
            rgb = np.pad(rgb, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        frame = self._reformatter.reformat(
            av.VideoFrame.from_ndarray(rgb, "rgb24"),
            format="yuv420p",
            dst_colorspace=Colorspace.ITU709,
            dst_color_range=ColorRange.MPEG,
            threads=1,
        )
        self._last = max(round(time / _TIME_BASE), self._last + 1)
        frame.pts, frame.time_base = self._last, _TIME_BASE
        self._mux(frame)

    def finish(self, end: Fraction) -> None:
        """Write what is still held; the last frame is shown until `end`."""
        self._mux(None)
        if self._held:
            self._mux_held(round(end / _TIME_BASE))

    def _mux(self, frame: av.VideoFrame | None) -> None:
        for packet in self._stream.encode(frame):
            if self._held and packet.pts is not None:
                self._mux_held(packet.pts)
            self._held = packet

    def _mux_held(self, until: int) -> None:
        if self._held and self._held.pts is not None:
            self._held.duration = max(until - self._held.pts, 1)
            self._output.mux_one(self._held)
