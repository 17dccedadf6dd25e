"""The annotated video: boxes, labels and answers drawn on every frame of the source.

A second pass over the source. Every frame keeps its time; the audio is copied where MP4 and browsers take it.
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import av
import cv2
import numpy as np
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pipeline_ver2.errors import ResultsError
from pipeline_ver2.probe import open_container
from pipeline_ver2.video import VideoReader
from pipeline_ver2.wire import Detection

_TIME_BASE = Fraction(1, 90_000)
_SAME_FRAME_S = 0.0005  # times may have been rounded to milliseconds on their way here
_AUDIO_CODECS = frozenset({"aac", "mp3", "ac3", "opus"})
_PALETTE = ((230, 60, 60), (60, 160, 230), (70, 190, 90), (240, 170, 40), (170, 90, 220), (30, 190, 190))
_BT709 = 1  # AVCOL_SPC_, AVCOL_PRI_ and AVCOL_TRC_BT709
_LIMITED = 1  # AVCOL_RANGE_MPEG
_CAPTION_LINES = 2


@dataclass(frozen=True, slots=True)
class KeyframeOverlay:
    """What Stage 1 found in a keyframe: shown from that frame until the next keyframe."""

    time_s: float
    detections: Sequence[Detection]


@dataclass(frozen=True, slots=True)
class Caption:
    """A line at the bottom of the picture, from `start_s` up to and without `end_s`."""

    start_s: float
    end_s: float
    text: str


def annotate(
    source: Path,
    out: Path,
    *,
    keyframes: Sequence[KeyframeOverlay],
    captions: Sequence[Caption] = (),
    threads: int | None = None,
    stop: threading.Event | None = None,
) -> list[str]:
    """Write an H.264 MP4 of the source with boxes and captions drawn in; `out` appears only when it is complete.

    Args:
        source: The video.
        out: The file to write, replaced if it exists.
        keyframes: In any order; boxes in pixels of the upright source frame.
        captions: Where two overlap, the one that starts later is shown.
        threads: Of decoder and encoder; None for one and the encoder's choice.
        stop: When set, writing stops after the frame in hand and nothing is left behind.

    Returns:
        Warnings: damage of the source, audio that was left out.

    Raises:
        VideoError: The source cannot be read.
        ResultsError: `out` cannot be written.
    """
    part = out.with_name(f"{out.name}.part")
    try:
        with VideoReader(source, threads=threads) as reader:
            warnings = _write(reader, part, _Painter(keyframes, captions), threads=threads, stop=stop)
        if stop is None or not stop.is_set():
            part.replace(out)
    except (FFmpegError, OSError) as error:
        raise ResultsError(f"{out}: the annotated video cannot be written ({error.strerror or error})") from error
    finally:
        part.unlink(missing_ok=True)
    return warnings


def _write(
    reader: VideoReader, part: Path, painter: _Painter, *, threads: int | None, stop: threading.Event | None
) -> list[str]:
    with ExitStack() as stack:
        frame = reader.next_frame()
        output = stack.enter_context(
            av.open(f"file:{part.absolute()}", "w", format="mp4", container_options={"movflags": "+faststart"})
        )
        encoder = _Encoder(output, reader, threads)
        audio = _AudioCopy(reader, output)
        stack.callback(audio.close)
        while frame is not None and not (stop and stop.is_set()):
            picture = reader.rgb(frame.picture)
            painter.draw(picture, float(frame.time))
            encoder.write(picture, frame.time)
            audio.copy_until(frame.time)
            frame = reader.next_frame()
        audio.copy_until(reader.end_s)
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


class _AudioCopy:
    """Copies the first audio stream, packet by packet, moved to the video's time 0. Says in `warnings` if it cannot."""

    def __init__(self, reader: VideoReader, output: OutputContainer) -> None:
        self.warnings: list[str] = []
        self._output, self._origin = output, reader.origin_s
        self._container = open_container(reader.info.path)
        self._packets: Iterator[tuple[Fraction, Packet[AudioStream]]] = iter(())
        self._ahead: tuple[Fraction, Packet[AudioStream]] | None = None
        self._last_dts = -1
        streams = self._container.streams.audio
        if not streams:
            return
        codec = streams[0].codec.canonical_name if streams[0].codec_context else "unknown codec"
        if codec not in _AUDIO_CODECS:
            self.warnings.append(f"the audio ({codec}) was left out: MP4 does not take it or browsers do not play it")
            return
        self._target = output.add_stream_from_template(streams[0])
        self._packets = self._read(streams[0])

    def copy_until(self, time: Fraction) -> None:
        """Copy the packets up to a time of the video."""
        while (ahead := self._ahead or next(self._packets, None)) is not None:
            self._ahead = ahead
            starts, packet = ahead
            if starts > time:
                return
            self._ahead = None
            self._output.mux_one(packet)

    def close(self) -> None:
        """Release the source."""
        self._container.close()

    def _read(self, stream: AudioStream) -> Iterator[tuple[Fraction, Packet[AudioStream]]]:
        """Packets from the video's time 0 on, in order, with their new timestamps, and when each starts."""
        try:
            for packet in self._container.demux(stream):
                if packet.pts is None or packet.dts is None:
                    continue
                offset = round(self._origin / packet.time_base)
                if packet.pts >= offset and packet.dts - offset > self._last_dts:
                    self._last_dts = packet.dts = packet.dts - offset
                    packet.pts -= offset
                    packet.stream = self._target
                    yield packet.pts * packet.time_base, packet
        except FFmpegError as error:
            self.warnings.append(f"the audio ends early: {error.strerror}")


class _Painter:
    """Draws what belongs to a time."""

    def __init__(self, keyframes: Sequence[KeyframeOverlay], captions: Sequence[Caption]) -> None:
        self._keyframes = sorted(keyframes, key=lambda keyframe: keyframe.time_s)
        self._captions = sorted(captions, key=lambda caption: caption.start_s)
        self._key_times = [keyframe.time_s - _SAME_FRAME_S for keyframe in self._keyframes]
        self._caption_times = [caption.start_s - _SAME_FRAME_S for caption in self._captions]

    def draw(self, rgb: NDArray[np.uint8], time_s: float) -> None:
        """Draw into an upright `(h, w, 3)` frame."""
        if position := bisect_right(self._key_times, time_s):
            for detection in self._keyframes[position - 1].detections:
                _draw_detection(rgb, detection)
        if position := bisect_right(self._caption_times, time_s):
            caption = self._captions[position - 1]
            if time_s < caption.end_s - _SAME_FRAME_S and caption.text:
                _draw_caption(rgb, caption.text)


def _draw_detection(rgb: NDArray[np.uint8], detection: Detection) -> None:
    height, width = rgb.shape[:2]
    x1, y1, x2, y2 = (round(side) for side in detection.box)
    name = detection.labels[0].name if detection.labels else ""
    colour = _PALETTE[zlib.crc32(name.encode()) % len(_PALETTE)]
    cv2.rectangle(rgb, (x1, y1), (x2, y2), colour, thickness=max(1, min(height, width) // 240))
    if not detection.labels:
        return
    text = ", ".join(f"{label.name} {label.score:.2f}" for label in detection.labels)
    tag = _tag(text, _font_size(height), colour)
    above = y1 - tag.shape[0]
    _paste(rgb, tag, x1, above if above >= 0 else y1)


def _draw_caption(rgb: NDArray[np.uint8], text: str) -> None:
    """Darken the bottom and write the caption over it in white."""
    height, width = rgb.shape[:2]
    letters = _caption_letters(text, width, _font_size(height))[:height]
    bar = rgb[height - letters.shape[0] :]
    np.maximum(bar // 3, letters[..., np.newaxis], out=bar)


def _paste(rgb: NDArray[np.uint8], patch: NDArray[np.uint8], x: int, y: int) -> None:
    """Copy a patch into a frame, moved inside it; what does not fit is cut."""
    height, width = rgb.shape[:2]
    x = max(0, min(x, width - patch.shape[1]))
    y = max(0, min(y, height - patch.shape[0]))
    room = rgb[y : y + patch.shape[0], x : x + patch.shape[1]]
    room[:] = patch[: room.shape[0], : room.shape[1]]


def _font_size(height: int) -> int:
    return max(10, height // 36)


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans out of matplotlib: Pillow's own font has no accents, OpenCV's only ASCII."""
    import matplotlib as mpl

    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", size)


@lru_cache(maxsize=256)
def _tag(text: str, size: int, colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    """A label, white on its colour: `(h, w, 3)` uint8 RGB."""
    width = round(_font(size).getlength(text)) + size // 2
    picture = Image.new("RGB", (width, size + size // 2), colour)
    ImageDraw.Draw(picture).text((size // 4, size // 8), text, font=_font(size), fill="white")
    return np.asarray(picture)


@lru_cache(maxsize=64)
def _caption_letters(text: str, width: int, size: int) -> NDArray[np.uint8]:
    """The letters of a caption as a mask: `(h, width)` uint8, 255 where ink is."""
    lines = _wrap(text, width - size, size)
    picture = Image.new("L", (width, (size + size // 2) * len(lines)), 0)
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        draw.text((size // 2, (size + size // 2) * number + size // 8), line, font=_font(size), fill=255)
    return np.asarray(picture)


def _wrap(text: str, width: int, size: int) -> list[str]:
    """Break a text into lines of at most `width` pixels; what is over the last line ends in an ellipsis."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _font(size).getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    rest = " ".join(lines[_CAPTION_LINES - 1 :])
    return [*lines[: _CAPTION_LINES - 1], *([_shorten(rest, width, size)] if rest else [])]


def _shorten(text: str, width: int, size: int) -> str:
    if _font(size).getlength(text) <= width:
        return text
    while text and _font(size).getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"
