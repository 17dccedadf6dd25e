"""Small test videos, made with ffmpeg or PyAV and kept for the session in a temporary folder."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.video import VideoReader

CLIPS = Path(__file__).parents[2] / "shared" / "clips"
_TIME_BASE = Fraction(1, 90_000)
_BITS = 10
_CELL = 16  # pixels of one bit's square


@cache
def folder() -> Path:
    """The session's folder; removed when the interpreter ends."""
    path = Path(tempfile.mkdtemp(prefix="test-videos-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def ffmpeg(name: str, *arguments: str) -> Path:
    """Run ffmpeg with these arguments and the file `name` as its output; made once a session."""
    path = folder() / name
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", *arguments, str(path)]
    subprocess.run(command, check=True, timeout=60)
    return path


@cache
def lavfi(name: str, source: str, *arguments: str) -> Path:
    """A video out of an ffmpeg source filter, such as `testsrc=s=160x120:r=30:d=2`."""
    return ffmpeg(name, "-f", "lavfi", "-i", source, *arguments)


@cache
def numbered(name: str, times: tuple[Fraction, ...], *, gop: int = 30, scale: int = 1, rate: int = 30) -> Path:
    """A video whose frame k is shown at `times[k]` and carries k as a pattern that `number_of` reads.

    `rate` is what the header says.
    """
    path = folder() / name
    options = {"preset": "ultrafast", "crf": "12", "threads": "1", "g": str(gop), "bf": "2"}
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=rate, options=options)
        picture = _pattern(0, scale)
        stream.width, stream.height, stream.pix_fmt = picture.shape[1], picture.shape[0], "yuv420p"
        stream.codec_context.time_base = _TIME_BASE
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(_pattern(number, scale), "rgb24")
            frame.pts, frame.time_base = round(time / _TIME_BASE), _TIME_BASE
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def base() -> Path:
    """Two numbered seconds at 30 frames/s, 160x96."""
    return numbered("base.mp4", steady(30, 2))


def steady(fps: int, seconds: Fraction | int) -> tuple[Fraction, ...]:
    """Times of a constant frame rate."""
    return tuple(Fraction(number, fps) for number in range(int(fps * seconds)))


def number_of(rgb: NDArray[np.uint8]) -> int:
    """The number a frame of `numbered` carries, at any size."""
    height, width = rgb.shape[:2]
    columns = (np.arange(_BITS) * 2 + 1) * width // (2 * _BITS)
    bits: Sequence[bool] = rgb[height // 2, columns].mean(axis=-1) > 127
    return sum(1 << position for position, bit in enumerate(bits) if bit)


def first_picture(path: Path) -> NDArray[np.uint8]:
    """The first frame as the product reads it."""
    with VideoReader(path) as reader:
        frame = reader.next_frame()
        assert frame is not None
        return reader.rgb(frame.picture)


def damaged(name: str, source: Path, *, at: float, size: int) -> Path:
    """A copy with `size` bytes overwritten from the fraction `at` of the file on."""
    data = bytearray(source.read_bytes())
    start = int(len(data) * at)
    data[start : start + size] = np.random.default_rng(1).bytes(size)
    return _written(name, bytes(data))


def cut(name: str, source: Path, share: float) -> Path:
    """The first part of a file."""
    data = source.read_bytes()
    return _written(name, data[: int(len(data) * share)])


def _written(name: str, data: bytes) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


def _pattern(number: int, scale: int) -> NDArray[np.uint8]:
    bits = [(number >> position) & 1 for position in range(_BITS)]
    row = np.repeat(np.array(bits, dtype=np.uint8) * 235 + 10, _CELL * scale)
    return np.ascontiguousarray(np.broadcast_to(row[None, :, None], (96 * scale, row.size, 3)))
