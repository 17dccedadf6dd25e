"""Frames people send to `/detect`, files under the media roots or base64 pictures, to clips of the model's size."""

from __future__ import annotations

import base64
import binascii
import io
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pipeline_ver2.errors import MediaPathError, RequestError
from pipeline_ver2.main import resize
from pipeline_ver2.wire import DetectClip

MAX_FRAME_PX = 36_000_000  # an 8K frame; checked before its pixels are decoded
MAX_REQUEST_PX = 64 * 4096 * 2160  # four clips of 16 frames of 4K; a second or two of decoding
MAX_FRAME_BYTES = 64_000_000
_FORMATS = ("JPEG", "PNG")


@dataclass(frozen=True, slots=True)
class DecodedClip:
    """A clip for the model.

    Attributes:
        frames: `(T, H, W, 3)` uint8 RGB at the model's size, oldest first.
        size: `(width, height)` of the frames as sent, upright, in pixels.
    """

    frames: NDArray[np.uint8]
    size: tuple[int, int]


class DecodeBudget:
    """How many pixels one request may still have decoded, until somebody calls it off. Thread-safe enough for that."""

    def __init__(self, pixels: int = MAX_REQUEST_PX) -> None:
        self._left = pixels
        self._over = threading.Event()

    def take(self, pixels: int) -> None:
        """Take the pixels of a clip, or none of them.

        Raises:
            RequestError: So many are not left.
        """
        if pixels > self._left:
            said = f"its frames have {pixels} pixels in all, of those allowed in a request {self._left} are left"
            raise RequestError(said)
        self._left -= pixels

    def call_off(self) -> None:
        """Let decoding in another thread end after its current picture."""
        self._over.set()

    def check(self) -> None:
        """See whether to go on.

        Raises:
            RequestError: It was called off.
        """
        if self._over.is_set():
            raise RequestError("nobody waits for it any more")


def decode_clip(
    clip: DetectClip, roots: Sequence[Path], budget: DecodeBudget, *, clip_length: int, image_size: tuple[int, int]
) -> DecodedClip:
    """Read, decode and resize the frames of one clip.

    Args:
        clip: Paths or base64 pictures.
        roots: Folders the paths may lie in, without symbolic links.
        budget: Of the request; the clip's pixels are counted by the heads of its pictures before any is decoded.
        clip_length: How many frames the model wants.
        image_size: `(height, width)` of the model's input in pixels.

    Raises:
        RequestError: Wrong number of frames, no picture, too large, or of different sizes.
        MediaPathError: A path outside the roots, or unreadable.
    """
    sources = clip.frames if clip.frames is not None else clip.frame_paths
    if sources is None or (clip.frames is not None and clip.frame_paths is not None):
        raise RequestError("expected either frames or frame_paths")
    if len(sources) != clip_length:
        raise RequestError(f"expected {clip_length} frames, found {len(sources)}")

    def read(number: int) -> bytes:
        source = sources[number - 1]
        return _read_file(source, roots) if clip.frames is None else _from_base64(source, number)

    numbers = range(1, clip_length + 1)
    budget.take(sum(_pixels(read(number), number) for number in numbers))
    frames = np.empty((clip_length, *image_size, 3), np.uint8)
    sizes: list[tuple[int, int]] = []
    for number in numbers:
        budget.check()
        rgb = _decode(read(number), number)
        sizes.append((rgb.shape[1], rgb.shape[0]))
        if sizes[-1] != sizes[0]:
            raise RequestError("frame {} is {}x{}, frame 1 is {}x{}".format(number, *sizes[-1], *sizes[0]))
        frames[number - 1] = resize(rgb, image_size)
    return DecodedClip(frames, sizes[0])


def _read_file(name: str, roots: Sequence[Path]) -> bytes:
    try:
        path = Path(name).resolve()
        if not any(path.is_relative_to(root) for root in roots):
            raise MediaPathError(f"{name}: outside the media roots (paths.media_roots)")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise MediaPathError(f"{name}: no regular file")
        if status.st_size > MAX_FRAME_BYTES:
            raise MediaPathError(f"{name}: {status.st_size} bytes, allowed are {MAX_FRAME_BYTES}")
        return path.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a zero byte; RuntimeError: links in a circle
        reason = error.strerror if isinstance(error, OSError) else error
        raise MediaPathError(f"{name}: {reason}") from error


def _from_base64(text: str, number: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"frame {number} is no valid base64: {error}") from error


def _pixels(encoded: bytes, number: int) -> int:
    """How many pixels a picture has by its head."""
    with _opened(encoded, number) as picture:
        return picture.width * picture.height


def _decode(encoded: bytes, number: int) -> NDArray[np.uint8]:
    """`(H, W, 3)` uint8 RGB, upright as its EXIF orientation says."""
    with _opened(encoded, number) as picture:
        return np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))


@contextmanager
def _opened(encoded: bytes, number: int) -> Iterator[Image.Image]:
    """A picture whose head has been read and checked."""
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as picture:
            width, height = picture.size
            if width * height > MAX_FRAME_PX:
                raise RequestError(f"frame {number} has {width}x{height} pixels, allowed are {MAX_FRAME_PX} in all")
            yield picture
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RequestError(f"frame {number} is no JPEG or PNG that can be decoded: {error}") from error
