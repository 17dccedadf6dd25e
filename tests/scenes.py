"""Drawn films: every frame carries its number as a bar code that survives lossy coding, and a person who moves."""

from __future__ import annotations

import subprocess
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from tests.videos import folder

Picture = NDArray[np.uint8]
Box = tuple[float, float, float, float]

_BITS = 8
_GREY, _RED = 60, (200, 20, 20)  # both darker than any outline drawn on them
_STRIP = 0.16  # of the height: the number, and below it the number with every bit turned round


def draw(number: int, size: tuple[int, int], *, alone: bool = False) -> Picture:
    """Frame `number` of a scene of `(width, height)`: `(height, width, 3)` uint8 RGB; `alone`: without the person."""
    width, height = size
    picture = np.full((height, width, 3), _GREY, np.uint8)
    bits = np.array([(number >> position) & 1 for position in range(_BITS)], np.uint8)
    row = bits[np.arange(width) * _BITS // width] * 215 + 20
    strip = round(_STRIP * height)
    picture[:strip] = row[None, :, None]
    picture[strip : 2 * strip] = (255 - row)[None, :, None]
    if not alone:
        x1, y1, x2, y2 = (round(side) for side in box_of(number, size))
        picture[y1:y2, x1:x2] = _RED
    return picture


def box_of(number: int, size: tuple[int, int]) -> Box:
    """Where the person is in a frame, whole pixels: they go to the right, and back when there is no more room."""
    width, height = size
    room, gone = width * 3 // 4, round(number * width * 0.0115)
    x1 = width // 25 + (gone % (2 * room) if gone % (2 * room) <= room else 2 * room - gone % (2 * room))
    y1 = height * 54 // 100
    return (x1, y1, x1 + width // 6, y1 + height // 4)


def number_in(picture: Picture) -> int | None:
    """The number a frame carries, at any size; None where the two strips do not agree: a spoilt picture."""
    height, width = picture.shape[:2]
    columns = ((np.arange(_BITS) * 2 + 1) * width / (2 * _BITS)).astype(int)
    rows = [round(height * _STRIP * (strip + 0.5)) for strip in (0, 1)]
    bits, turned_round = (picture[row, columns].mean(axis=-1) > 127 for row in rows)
    if (bits == turned_round).any():
        return None
    return sum(1 << position for position, bit in enumerate(bits) if bit)


def person_in(picture: Picture) -> Box | None:
    """The person's box in a frame, 0..1 of it; None if there is none."""
    height, width = picture.shape[:2]
    levels = picture.astype(int)
    red = levels[..., 0] - levels[..., 1:].max(axis=-1) > 80
    rows, columns = np.flatnonzero(red.sum(axis=1) > width / 16), np.flatnonzero(red.sum(axis=0) > height / 10)
    if not len(rows) or not len(columns):
        return None
    return (columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height)


@dataclass(frozen=True)
class Film:
    """A file, and what is true of it by construction: the size it is shown in, which numbers, and how many a second."""

    path: Path
    size: tuple[int, int]
    numbers: tuple[int, ...]
    rate: Fraction

    def time_of(self, number: int) -> Fraction:
        """When a number is shown, seconds; 0 is the first frame of the file."""
        return (number - self.numbers[0]) / self.rate

    def on_grid(self, index: int, tick: Fraction = Fraction(0)) -> set[int]:
        """The number that grid frame `index` of 30 a second shows by definition; two where times are off by a tick."""
        times = [self.time_of(number) for number in self.numbers]
        limit = (index + Fraction(1, 2)) / 30
        return {self.numbers[max(bisect_right(times, limit + off) - 1, 0)] for off in (-tick, tick)}

    @property
    def grid_length(self) -> int:
        """Frames of the grid of 30 a second."""
        return round(self.time_of(self.numbers[-1]) * 30) + 1


@cache
def film(
    name: str,
    *encoding: str,
    rate: Fraction = Fraction(30),
    frames: int = 60,
    size: tuple[int, int] = (160, 120),
    kept: tuple[int, ...] | None = None,
    turned: int = 0,
    present: tuple[int, ...] | None = None,
) -> Film:
    """Encode a scene with ffmpeg; made once a session.

    Args:
        name: Of the file; what it ends in decides the container.
        encoding: Options of the output.
        rate: Frames a second of the scene.
        frames: How many are drawn.
        size: Width and height of the upright scene.
        kept: The numbers that are in the file, if not all: a variable frame rate.
        turned: Quarter turns counterclockwise by which the stored pixels are turned.
        present: The numbers with the person in them, if not all.
    """
    path = folder() / name
    pictures = [
        np.rot90(draw(number, size, alone=present is not None and number not in present), turned)
        for number in range(frames)
    ]
    height, width = pictures[0].shape[:2]
    source = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{width}x{height}", "-framerate", str(rate)]
    chosen = [] if kept is None else ["-vf", f"select='{'+'.join(f'eq(n,{n})' for n in kept)}'", "-fps_mode", "vfr"]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", *source, "-i", "-", *chosen, "-threads", "1"]
    subprocess.run(
        [*command, *encoding, str(path)], check=True, timeout=60, input=b"".join(p.tobytes() for p in pictures)
    )
    return Film(path, size, kept or tuple(range(frames)), rate)


def copied(name: str, source: Film, *arguments: str, before: tuple[str, ...] = (), dropped: int = 0) -> Film:
    """A stream copy with other options; `dropped` frames of the start are no longer shown."""
    path = folder() / name
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", *before, "-i", str(source.path), "-c", "copy"]
    subprocess.run([*command, *arguments, str(path)], check=True, timeout=60)
    return Film(path, source.size, source.numbers[dropped:], source.rate)
