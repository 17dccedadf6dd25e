"""Backgrounds of the demo world: five families of places, drawn once per scene and size."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
Colour = tuple[int, int, int]


def draw_scenery(seed: int, size: tuple[int, int]) -> Frame:
    """Draw the place a seed stands for.

    Args:
        seed: Same seed, same place at every size.
        size: `(height, width)` in pixels.

    Returns:
        `(height, width, 3)` uint8 RGB.
    """
    rng = np.random.default_rng(seed)
    frame = np.empty((*size, 3), np.uint8)
    _FAMILIES[rng.integers(len(_FAMILIES))](rng, frame)
    return _textured(rng, frame)


def _street(rng: np.random.Generator, frame: Frame) -> None:
    horizon = rng.uniform(0.5, 0.68)
    _gradient(frame, 0.0, horizon, _tint(rng, (150, 190, 230), 30), _tint(rng, (220, 225, 230), 20))
    _gradient(frame, horizon, 1.0, _tint(rng, (140, 140, 145), 25), _tint(rng, (105, 105, 110), 25))
    left = rng.uniform(-0.1, 0.0)
    while left < 1.0:
        width, top = rng.uniform(0.1, 0.28), rng.uniform(0.05, horizon - 0.15)
        wall = _tint(rng, (165, 140, 125), 45)
        _box(frame, (left, top, left + width, horizon), wall)
        _grid_of_windows(rng, frame, (left, top, left + width, horizon), wall)
        left += width + rng.uniform(0.0, 0.05)
    _box(frame, (0, horizon, 1, horizon + 0.035), _tint(rng, (175, 172, 168), 20))
    _box(frame, (0, horizon + 0.035, 1, horizon + 0.045), _tint(rng, (95, 95, 98), 15))


def _grid_of_windows(
    rng: np.random.Generator, frame: Frame, wall: tuple[float, float, float, float], colour: Colour
) -> None:
    x1, y1, x2, y2 = wall
    pane = _scaled(colour, rng.uniform(0.45, 0.7)) if rng.random() < 0.7 else _tint(rng, (235, 215, 150), 20)
    columns, rows = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    step_x, step_y = (x2 - x1) / columns, (y2 - y1) / rows
    for column in range(columns):
        for row in range(rows):
            left, top = x1 + (column + 0.25) * step_x, y1 + (row + 0.25) * step_y
            _box(frame, (left, top, left + 0.5 * step_x, top + 0.5 * step_y), pane)


def _room(rng: np.random.Generator, frame: Frame) -> None:
    floor = rng.uniform(0.6, 0.76)
    wall = _tint(rng, (205, 195, 180), 40)
    _gradient(frame, 0.0, floor, wall, _scaled(wall, 0.9))
    boards = _tint(rng, (150, 110, 75), 35)
    _gradient(frame, floor, 1.0, boards, _scaled(boards, 0.8))
    height, width = frame.shape[:2]
    vanishing = (int(width * rng.uniform(0.3, 0.7)), int(height * (floor - 0.5)))
    for x in np.arange(-1.5, 2.5, rng.uniform(0.09, 0.16)):
        _line_below(frame, floor, vanishing, (int(x * width), height), _scaled(boards, 0.72))
    _box(frame, (0, floor - 0.02, 1, floor), _scaled(wall, 0.7))
    for _ in range(int(rng.integers(1, 4))):
        left, top = rng.uniform(0.0, 0.85), rng.uniform(0.06, 0.25)
        right, bottom = left + rng.uniform(0.1, 0.22), top + rng.uniform(0.15, 0.3)
        _box(frame, (left - 0.012, top - 0.02, right + 0.012, bottom + 0.02), _tint(rng, (235, 232, 225), 20))
        _box(frame, (left, top, right, bottom), _tint(rng, (140, 170, 190), 60))
    if rng.random() < 0.6:
        left = rng.uniform(0.0, 0.75)
        _box(
            frame,
            (left, floor - rng.uniform(0.12, 0.35), left + rng.uniform(0.1, 0.25), floor),
            _tint(rng, (120, 90, 70), 40),
        )


def _line_below(frame: Frame, floor: float, start: tuple[int, int], end: tuple[int, int], colour: Colour) -> None:
    """The part of a line that lies on the floor."""
    top = int(floor * frame.shape[0])
    share = (top - start[1]) / max(1, end[1] - start[1])
    cv2.line(frame, (round(start[0] + share * (end[0] - start[0])), top), end, colour, 1, cv2.LINE_AA)


def _hall(rng: np.random.Generator, frame: Frame) -> None:
    floor = rng.uniform(0.55, 0.72)
    wall, ground = _tint(rng, (170, 180, 185), 40), _tint(rng, (190, 160, 110), 45)
    _gradient(frame, 0.0, floor, _scaled(wall, 0.85), wall)
    _gradient(frame, floor, 1.0, ground, _scaled(ground, 0.85))
    pitch = rng.uniform(0.05, 0.12)
    for x in np.arange(0, 1, pitch):
        _box(frame, (x, 0, x + 0.004, floor), _scaled(wall, 0.8))
    for y in np.arange(floor - 0.1, 0, -pitch * 1.8):
        _box(frame, (0, y, 1, y + 0.006), _scaled(wall, 0.8))
    height, width = frame.shape[:2]
    for _ in range(int(rng.integers(2, 5))):
        y = rng.uniform(floor + 0.03, 0.98)
        end_y = y + rng.uniform(-0.06, 0.06)
        colour = _tint(rng, (200, 200, 200), 55)
        cv2.line(frame, (0, int(y * height)), (width, int(end_y * height)), colour, max(1, height // 90), cv2.LINE_AA)
    _box(frame, (0, floor - 0.012, 1, floor), _scaled(ground, 0.6))


def _park(rng: np.random.Generator, frame: Frame) -> None:
    horizon = rng.uniform(0.48, 0.66)
    _gradient(frame, 0.0, horizon, _tint(rng, (130, 180, 230), 30), _tint(rng, (215, 230, 240), 15))
    height, width = frame.shape[:2]
    for _ in range(3):
        centre = (int(rng.random() * width), int((horizon + 0.1) * height))
        axes = (int(rng.uniform(0.2, 0.5) * width), int(rng.uniform(0.12, 0.3) * height))
        cv2.ellipse(frame, centre, axes, 0, 0, 360, _tint(rng, (120, 150, 120), 25), -1, cv2.LINE_AA)
    grass = _tint(rng, (110, 150, 75), 30)
    _gradient(frame, horizon, 1.0, grass, _scaled(grass, 0.75))
    for _ in range(int(rng.integers(2, 7))):
        x, scale = rng.random(), rng.uniform(0.08, 0.2)
        _box(frame, (x - 0.006, horizon - scale, x + 0.006, horizon + 0.03), _tint(rng, (95, 70, 50), 15))
        leaves = _tint(rng, (70, 120, 60), 30)
        for offset in (-0.3, 0.0, 0.3):
            centre = (int((x + offset * scale * 0.5) * width), int((horizon - scale * (1.2 - abs(offset))) * height))
            cv2.circle(frame, centre, int(scale * 0.5 * height), leaves, -1, cv2.LINE_AA)
    if rng.random() < 0.5:
        top = rng.uniform(horizon + 0.05, 0.85)
        _box(frame, (0, top, 1, top + rng.uniform(0.06, 0.2)), _tint(rng, (190, 170, 135), 20))


def _clutter(rng: np.random.Generator, frame: Frame) -> None:
    _gradient(frame, 0.0, 1.0, _tint(rng, (128, 128, 128), 90), _tint(rng, (128, 128, 128), 90))
    height, width = frame.shape[:2]
    for _ in range(int(rng.integers(4, 12))):
        colour = _tint(rng, (128, 128, 128), 100)
        centre = (int(rng.random() * width), int(rng.random() * height))
        axes = (int(rng.uniform(0.02, 0.16) * width), int(rng.uniform(0.02, 0.2) * height))
        if rng.random() < 0.5:
            cv2.ellipse(frame, centre, axes, float(rng.random() * 180), 0, 360, colour, -1, cv2.LINE_AA)
        else:
            end = (int(rng.random() * width), int(rng.random() * height))
            cv2.line(frame, centre, end, colour, max(1, int(rng.uniform(0.005, 0.03) * height)), cv2.LINE_AA)


_FAMILIES: tuple[Callable[[np.random.Generator, Frame], None], ...] = (_street, _room, _hall, _park, _clutter)


def _textured(rng: np.random.Generator, frame: Frame) -> Frame:
    """Adds soft blotches of light and shade, the same at every size."""
    strength = rng.uniform(2, 14)
    coarse = rng.normal(0, 1, (int(rng.integers(4, 40)), int(rng.integers(6, 70)))).astype(np.float32)
    height, width = frame.shape[:2]
    blotches = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR) * strength
    return np.clip(frame + blotches[:, :, None], 0, 255).astype(np.uint8)


def _gradient(frame: Frame, top: float, bottom: float, first: Colour, last: Colour) -> None:
    """Fill the rows between two heights (0..1) with colours running from `first` to `last`."""
    start, stop = int(top * frame.shape[0]), int(bottom * frame.shape[0])
    rows = np.linspace(first, last, max(1, stop - start))[:, None, :]
    frame[start:stop] = np.round(rows[: stop - start]).astype(np.uint8)


def _box(frame: Frame, box: tuple[float, float, float, float], colour: Colour) -> None:
    height, width = frame.shape[:2]
    x1, y1, x2, y2 = box
    frame[
        max(0, round(y1 * height)) : max(0, round(y2 * height)), max(0, round(x1 * width)) : max(0, round(x2 * width))
    ] = colour


def _tint(rng: np.random.Generator, colour: Colour, spread: float) -> Colour:
    """A colour near the given one: half of the spread is common to the three channels."""
    shift = rng.uniform(-spread, spread)
    red, green, blue = (int(np.clip(part + shift + rng.uniform(-spread, spread) / 2, 0, 255)) for part in colour)
    return red, green, blue


def _scaled(colour: Colour, factor: float) -> Colour:
    red, green, blue = (int(np.clip(part * factor, 0, 255)) for part in colour)
    return red, green, blue
