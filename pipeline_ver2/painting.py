"""What is drawn on a frame of the annotated video: boxes with their labels, and a caption."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pipeline_ver2.wire import Detection

Between = Literal["hold", "interpolate"]
"""Boxes between two keyframes: those of the first, or on their way to the second where both show the same person."""

_SAME_FRAME_S = 0.0005  # times may have been rounded to milliseconds on their way here
_PALETTE = ((230, 60, 60), (60, 160, 230), (70, 190, 90), (240, 170, 40), (170, 90, 220), (30, 190, 190))
_CAPTION_LINES = 2
# Labels and captions that are drawn again on the next frame. Few: what lives on among the pictures' large blocks of
# memory keeps them from being given back, and memory grew with the video.
_TAGS_KEPT, _CAPTIONS_KEPT = 32, 4


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


class Painter:
    """Draws what belongs to a time."""

    def __init__(
        self, keyframes: Sequence[KeyframeOverlay], captions: Sequence[Caption], between: Between = "hold"
    ) -> None:
        self._keyframes = sorted(keyframes, key=lambda keyframe: keyframe.time_s)
        self._captions = sorted(captions, key=lambda caption: caption.start_s)
        self._between = between
        self._key_times = [keyframe.time_s - _SAME_FRAME_S for keyframe in self._keyframes]
        self._caption_times = [caption.start_s - _SAME_FRAME_S for caption in self._captions]

    def draw(self, rgb: NDArray[np.uint8], time_s: float) -> None:
        """Draw into an upright `(h, w, 3)` frame."""
        for detection in self.detections_at(time_s):
            _draw_detection(rgb, detection)
        if position := bisect_right(self._caption_times, time_s):
            caption = self._captions[position - 1]
            if time_s < caption.end_s - _SAME_FRAME_S and caption.text:
                _draw_caption(rgb, caption.text)

    def detections_at(self, time_s: float) -> Sequence[Detection]:
        """What is drawn at a time; boxes in pixels of the upright frame."""
        position = bisect_right(self._key_times, time_s)
        if not position:
            return ()
        last = self._keyframes[position - 1]
        if self._between == "hold" or position == len(self._keyframes):
            return last.detections
        following = self._keyframes[position]
        share = max(0.0, time_s - last.time_s) / (following.time_s - last.time_s)
        return tuple(_moved(last.detections, following.detections, share))


def _moved(before: Sequence[Detection], after: Sequence[Detection], share: float) -> Iterator[Detection]:
    """Detections of the earlier keyframe, moved by a share of the way to where the same person is in the later one."""
    partner = dict(_pairs(before, after))
    for number, detection in enumerate(before):
        if number not in partner:
            yield detection
            continue
        x1, y1, x2, y2 = (
            start + (end - start) * share for start, end in zip(detection.box, after[partner[number]].box, strict=True)
        )
        yield detection.model_copy(update={"box": (x1, y1, x2, y2)})


def _pairs(before: Sequence[Detection], after: Sequence[Detection]) -> Iterator[tuple[int, int]]:
    """Which detections of two keyframes are one person: the nearest first, no farther apart than the larger is big."""
    apart = sorted(
        (_distance(first, second), number, other)
        for number, first in enumerate(before)
        for other, second in enumerate(after)
    )
    taken: tuple[set[int], set[int]] = (set(), set())
    for distance, number, other in apart:
        if distance <= 1 and number not in taken[0] and other not in taken[1]:
            taken[0].add(number)
            taken[1].add(other)
            yield number, other


def _distance(first: Detection, second: Detection) -> float:
    """How far apart the middles are, in units of the larger one's longer side."""
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = first.box, second.box
    longest = max(ax2 - ax1, ay2 - ay1, bx2 - bx1, by2 - by1, 1)
    return max(abs(ax1 + ax2 - bx1 - bx2), abs(ay1 + ay2 - by1 - by2)) / 2 / longest


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


@lru_cache(maxsize=_TAGS_KEPT)
def _tag(text: str, size: int, colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    """A label, white on its colour: `(h, w, 3)` uint8 RGB."""
    width = round(_font(size).getlength(text)) + size // 2
    picture = Image.new("RGB", (width, size + size // 2), colour)
    ImageDraw.Draw(picture).text((size // 4, size // 8), text, font=_font(size), fill="white")
    return np.asarray(picture)


@lru_cache(maxsize=_CAPTIONS_KEPT)
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
