"""What a video file is: opening it or saying why not, its stream, its header, which way up it stands.

What the header says is a hint: every number in it is checked, and what is implausible counts as unknown.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, Literal

import av
import cv2
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition
from av.video.stream import VideoStream
from numpy.typing import NDArray

from pipeline_ver2.errors import VideoError

# Demuxers that read one local file. Lists and scripts (HLS, DASH, concat) name other files and addresses, so a
# file sent by a stranger must not be read as one.
_FORMATS = (
    "mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,h264,hevc,m4v,obu,ivf,flv,ogg,asf,yuv4mpegpipe,mxf,aac,mp3,wav,flac"
)
_NO_TIMESTAMPS = 0x0080  # AVFMT_NOTIMESTAMPS
_PICTURE_MAGIC = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF"}
_OR_ELSE = {"JPEG": "; a bare MJPEG stream wants a container: ffmpeg -f mjpeg -i … -c copy ….mkv"}
_PICTURE_BRANDS = frozenset({"avif", "heic", "heix", "mif1"})
_STILL = Disposition.attached_pic | Disposition.still_image | Disposition.timed_thumbnails

_MAX_FPS = 500  # beyond are artefacts of a time base: 600, 1000, 90000
_FALLBACK_FPS = Fraction(25)
_MAX_DURATION_S = 30 * 24 * 3600


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a video is. Sizes are of the upright frame in stored pixels: non-square pixels are not stretched.

    `rotation` is how many degrees clockwise stored frames are turned to be upright. `duration_s`, `fps` and
    `frames_header` are the header's, None where it says nothing plausible. `timestamps` is "estimated" where the
    file has none and times are index / rate.
    """

    path: Path
    width: int
    height: int
    duration_s: float | None
    fps: float | None
    rotation: int
    codec: str
    timestamps: Literal["container", "estimated"]
    frames_header: int | None


@dataclass(frozen=True, slots=True)
class Orientation:
    """How a stored frame becomes upright: transposed first, then flipped."""

    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False

    @classmethod
    def of(cls, picture: av.VideoFrame) -> Orientation:
        """Read the display matrix of a frame; angles in between go to the nearest right angle."""
        a, b, c, d = _display_matrix(picture)
        if abs(b) + abs(c) > abs(a) + abs(d):
            return cls(transpose=True, flip_rows=b < 0, flip_columns=c < 0)
        return cls(flip_rows=d < 0, flip_columns=a < 0)

    @property
    def degrees(self) -> int:
        """Clockwise turn; a mirrored frame has the turn that goes with its mirroring."""
        if self.transpose:
            return 90 if self.flip_columns else 270
        return 180 if self.flip_rows else 0

    def apply(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Turn a stored `(h, w, 3)` frame upright; the same array where nothing is to be done."""
        turned: Any = rgb
        if self.transpose:
            turned = cv2.transpose(turned)
        if self.flip_rows or self.flip_columns:
            turned = cv2.flip(turned, -1 if self.flip_rows and self.flip_columns else int(self.flip_columns))
        return np.asarray(turned, dtype=np.uint8)


def _display_matrix(picture: av.VideoFrame) -> tuple[int, int, int, int]:
    """The turning part (a, b, c, d) of FFmpeg's display matrix: x' = a x + c y, y' = b x + d y."""
    try:
        side_data: Any = picture.side_data
        matrix = np.frombuffer(bytes(side_data["DISPLAYMATRIX"]), dtype=np.int32)
    except KeyError:
        return 1, 0, 0, 1
    except ValueError:  # a kind of side data this PyAV has no name for; the angle can still be read
        return ((1, 0, 0, 1), (0, -1, 1, 0), (-1, 0, 0, -1), (0, 1, -1, 0))[round(picture.rotation / 90) % 4]
    return int(matrix[0]), int(matrix[1]), int(matrix[3]), int(matrix[4])


@dataclass(frozen=True, slots=True)
class Header:
    """What the container says, checked. `rate` is always usable; `own_duration_s` is the video stream's alone."""

    time_base: Fraction
    rate: Fraction
    fps: float | None
    duration_s: float | None
    own_duration_s: float | None
    frames: int | None
    timestamps: Literal["container", "estimated"]

    @classmethod
    def read(cls, container: InputContainer, stream: VideoStream) -> Header:
        """Read the header of an open container."""
        bare = bool(container.format.flags & _NO_TIMESTAMPS)
        rates = [stream.average_rate, stream.guessed_rate]
        if bare:  # without timestamps these are the demuxer's; what the pictures say themselves goes first
            rates = [stream.codec_context.framerate, *reversed(rates)]
        rate = next((rate for rate in rates if plausible_rate(rate)), None)
        # Matroska counts durations from the file's time 0, which may be long before the first frame.
        late_s = float((stream.start_time or 0) * (stream.time_base or 0)) if "matroska" in container.format.name else 0
        own = _own_duration_s(stream, late_s)
        whole = plausible_duration(container.duration / av.time_base - late_s if container.duration else None)
        if own is None and len(container.streams) == 1:
            own = whole
        duration = own or whole
        return cls(
            time_base=stream.time_base or Fraction(1, 1000),
            rate=rate or _FALLBACK_FPS,
            fps=float(rate) if rate else None,
            duration_s=duration,
            own_duration_s=own,
            frames=plausible_count(stream.frames, duration),
            timestamps="estimated" if bare or stream.time_base is None else "container",
        )


def plausible_rate(rate: Fraction | None) -> bool:
    """Whether a header's frame rate can be one: above 0 and no artefact of a time base."""
    return rate is not None and 0 < rate <= _MAX_FPS


def plausible_duration(seconds: float | None) -> float | None:
    """A header's duration in seconds, None if it cannot be one (0, negative, NaN, months)."""
    return seconds if seconds is not None and 0 < seconds <= _MAX_DURATION_S else None


def plausible_count(frames: int, duration_s: float | None) -> int | None:
    """A header's number of frames, None if it cannot be one: none, negative, too many for the duration."""
    most = _MAX_FPS * (duration_s or _MAX_DURATION_S) + 1
    return frames if 0 < frames <= most else None


def _own_duration_s(stream: VideoStream, late_s: float) -> float | None:
    """Duration of the video stream itself: from its header, or Matroska's DURATION tag ("00:00:02.966000000").

    The tag is the time at which the stream ends; `late_s` is when it begins.
    """
    if stream.duration and stream.time_base:
        return plausible_duration(float(stream.duration * stream.time_base))
    tag = re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d+)?)", stream.metadata.get("DURATION", ""))
    if tag is None:
        return None
    hours, minutes, seconds = (float(part) for part in tag.groups())
    return plausible_duration(hours * 3600 + minutes * 60 + seconds - late_s)


def open_video(path: Path) -> tuple[InputContainer, VideoStream]:
    """Open a file for reading and find its moving picture.

    Raises:
        VideoError: Missing, empty, truncated before its index, no video at all, or a single picture.
    """
    container = open_container(path)
    try:
        return container, _moving_picture(container, path)
    except VideoError:
        container.close()
        raise


def open_container(path: Path) -> InputContainer:
    """Open a local media file.

    Raises:
        VideoError: Missing, empty, truncated before its index, a single picture, or no known format.
    """
    try:
        _refuse_by_content(path)
        # "file:" keeps a colon in the name from being read as a protocol.
        return av.open(
            f"file:{path.absolute()}",
            metadata_errors="replace",
            container_options={"format_whitelist": _FORMATS, "protocol_whitelist": "file"},
        )
    except FFmpegError as error:
        raise VideoError(f"{path}: not a video this program can read ({error.strerror})") from error
    except (OSError, ValueError) as error:
        raise VideoError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _refuse_by_content(path: Path) -> None:
    if not path.exists():
        raise VideoError(f"{path}: no such file")
    if not path.is_file():
        raise VideoError(f"{path}: not a file")
    with path.open("rb") as file:
        start = file.read(16)
        if not start:
            raise VideoError(f"{path}: the file is empty")
        for magic, name in _PICTURE_MAGIC.items():
            if start.startswith(magic):
                raise VideoError(f"{path}: a single {name} picture, not a video{_OR_ELSE.get(name, '')}")
        if start[4:8] == b"ftyp" and not _has_index(file):
            raise VideoError(f"{path}: truncated, its index (moov) is missing")


def _has_index(file: BinaryIO) -> bool:
    """Whether an ISO media file has a moov box among its top-level boxes."""
    offset = 0
    while True:
        file.seek(offset)
        head = file.read(16)
        if len(head) < 8:
            return False
        size, kind = struct.unpack(">I4s", head[:8])
        if kind == b"moov":
            return True
        if size == 1 and len(head) == 16:
            size = struct.unpack(">Q", head[8:])[0]
        if size < 8:  # 0 means "to the end of the file"; the rest is no box
            return False
        offset += size


def _moving_picture(container: InputContainer, path: Path) -> VideoStream:
    if container.metadata.get("major_brand", "").strip() in _PICTURE_BRANDS:
        raise VideoError(f"{path}: a single picture, not a video")
    moving = [stream for stream in container.streams.video if not stream.disposition & _STILL]
    if not moving:
        what = "only a cover picture" if container.streams.video else "no video stream"
        raise VideoError(f"{path}: holds {what}")
    best = container.streams.best("video")
    stream = best if isinstance(best, VideoStream) and best in moving else moving[0]
    if stream.codec_context is None:
        raise VideoError(f"{path}: its video codec is not supported")
    return stream
