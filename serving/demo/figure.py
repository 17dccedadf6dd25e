"""Draws a person from joints: tapered limbs, clothes, a shadow; its box comes from the same circles that are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from serving.demo.skeleton import JOINTS

Colour = tuple[int, int, int]
Frame = NDArray[np.uint8]
Vector = NDArray[np.float64]

_SHIFT = 4
_INDEX = {name: index for index, name in enumerate(JOINTS)}
_ARC = np.linspace(0, 2 * math.pi, 13)[:-1]
_CIRCLE = np.stack((np.cos(_ARC), np.sin(_ARC)), axis=1)
_HEAD_RADIUS = 0.068
# Radius of the body at each joint, in body heights.
_RADII = np.array(
    (
        _HEAD_RADIUS,
        0.03,
        0.042,
        0.033,
        0.026,
        0.042,
        0.033,
        0.026,
        0.058,
        0.045,
        0.032,
        0.024,
        0.058,
        0.045,
        0.032,
        0.024,
    )
)


@dataclass(frozen=True, slots=True)
class Look:
    """A person's colours (RGB) and build; `build` scales the thickness of limbs."""

    skin: Colour
    hair: Colour
    shirt: Colour
    trousers: Colour
    shoes: Colour
    long_sleeves: bool
    shorts: bool
    build: float


_SKINS: tuple[Colour, ...] = ((241, 205, 177), (224, 172, 138), (190, 132, 96), (141, 92, 64), (96, 62, 44))
_HAIRS: tuple[Colour, ...] = ((38, 28, 22), (84, 54, 34), (150, 106, 58), (196, 164, 104), (120, 118, 116))


def sample_look(rng: np.random.Generator) -> Look:
    """Draw a person's colours and build."""
    return Look(
        skin=_varied(rng, _SKINS[rng.integers(len(_SKINS))]),
        hair=_varied(rng, _HAIRS[rng.integers(len(_HAIRS))]),
        shirt=_cloth(rng),
        trousers=_cloth(rng),
        shoes=_cloth(rng),
        long_sleeves=bool(rng.random() < 0.6),
        shorts=bool(rng.random() < 0.25),
        build=float(rng.uniform(0.85, 1.2)),
    )


def extent(joints_px: Vector, height_px: float, look: Look) -> tuple[float, float, float, float]:
    """The box around a figure as drawn: x1, y1, x2, y2 in pixels, not clipped to the frame.

    Args:
        joints_px: `(16, 3)`: x, y in pixels of the frame, and depth.
        height_px: Body height in pixels.
        look: Its build.
    """
    radii = _RADII * height_px * np.where(np.arange(len(JOINTS)) == 0, 1.08, look.build)
    low, high = joints_px[:, :2] - radii[:, None], joints_px[:, :2] + radii[:, None]
    x1, y1 = low.min(axis=0)
    x2, y2 = high.max(axis=0)
    return float(x1), float(y1), float(x2), float(y2)


def draw_figure(frame: Frame, joints_px: Vector, height_px: float, look: Look, facing: float) -> None:
    """Draw a person into a frame, the limbs further away first.

    Args:
        frame: `(H, W, 3)` uint8 RGB, changed in place.
        joints_px: `(16, 3)`: x, y in pixels of the frame, and depth (greater = further away).
        height_px: Body height in pixels.
        look: Colours and build.
        facing: Where the face looks, -1 (left) to 1 (right).
    """
    brush = _Brush(frame, joints_px, height_px * look.build)
    left_is_near = joints_px[_INDEX["left_shoulder"], 2] < joints_px[_INDEX["right_shoulder"], 2]
    far, near = ("right", "left") if left_is_near else ("left", "right")
    _leg(brush, far, look, shade=0.8)
    _arm(brush, far, look, shade=0.8)
    _leg(brush, near, look, shade=1.0)
    brush.limb("neck", "head", look.skin, 0.032, 0.034)
    brush.hull(("left_shoulder", "right_shoulder", "left_hip", "right_hip"), look.shirt, (0.05, 0.05, 0.056, 0.056))
    _head(frame, joints_px, height_px, look, facing)
    _arm(brush, near, look, shade=1.0)


def draw_shadow(frame: Frame, centre_px: tuple[float, float], half_px: tuple[float, float]) -> None:
    """Darken an ellipse on the ground; centre and half axes in pixels of the frame."""
    x1, y1 = (math.floor(c - h) - 1 for c, h in zip(centre_px, half_px, strict=True))
    x2, y2 = (math.ceil(c + h) + 2 for c, h in zip(centre_px, half_px, strict=True))
    height, width = frame.shape[:2]
    left, top, right, bottom = max(0, x1), max(0, y1), min(width, x2), min(height, y2)
    if left >= right or top >= bottom:
        return
    region = frame[top:bottom, left:right]
    dark = region.copy()
    centre = _fixed(np.array((centre_px[0] - left, centre_px[1] - top)))
    cv2.ellipse(
        dark, centre.tolist(), _fixed(np.array(half_px)).tolist(), 0, 0, 360, (0, 0, 0), -1, cv2.LINE_AA, _SHIFT
    )
    cv2.addWeighted(region, 0.68, dark, 0.32, 0, dst=region)


class _Brush:
    """Draws limbs between named joints; radii in body heights."""

    def __init__(self, frame: Frame, joints_px: Vector, unit_px: float) -> None:
        self._frame = frame
        self._joints = joints_px
        self._unit_px = unit_px

    def limb(self, start: str, end: str, colour: Colour, start_radius: float, end_radius: float) -> None:
        self.hull((start, end), colour, (start_radius, end_radius))

    def hull(self, names: tuple[str, ...], colour: Colour, radii: tuple[float, ...]) -> None:
        circles = [
            self._joints[_INDEX[name], :2] + _CIRCLE * radius * self._unit_px
            for name, radius in zip(names, radii, strict=True)
        ]
        outline = cv2.convexHull(_fixed(np.concatenate(circles)))
        cv2.fillConvexPoly(self._frame, outline, colour, cv2.LINE_AA, _SHIFT)


def _leg(brush: _Brush, side: str, look: Look, shade: float) -> None:
    shin = look.skin if look.shorts else look.trousers
    brush.limb(f"{side}_knee", f"{side}_ankle", _shaded(shin, shade), 0.04, 0.028)
    brush.limb(f"{side}_hip", f"{side}_knee", _shaded(look.trousers, shade), 0.057, 0.043)
    brush.limb(f"{side}_ankle", f"{side}_toe", _shaded(look.shoes, shade), 0.031, 0.023)


def _arm(brush: _Brush, side: str, look: Look, shade: float) -> None:
    sleeve = look.shirt if look.long_sleeves else look.skin
    brush.limb(f"{side}_elbow", f"{side}_hand", _shaded(sleeve, 0.93 * shade), 0.031, 0.022)
    brush.limb(f"{side}_shoulder", f"{side}_elbow", _shaded(look.shirt, 0.93 * shade), 0.041, 0.033)
    brush.limb(f"{side}_hand", f"{side}_hand", _shaded(look.skin, shade), 0.026, 0.026)


def _head(frame: Frame, joints_px: Vector, height_px: float, look: Look, facing: float) -> None:
    head, neck = joints_px[_INDEX["head"], :2], joints_px[_INDEX["neck"], :2]
    up = head - neck
    up = up / max(1e-6, float(np.hypot(*up)))
    right = np.array((-up[1], up[0]))
    radius = _HEAD_RADIUS * height_px
    _disc(frame, head + up * radius * 0.08, radius, look.hair)
    face = head - up * radius * 0.16 + right * radius * 0.24 * facing
    _disc(frame, face, radius * 0.86, look.skin)
    for eye in (-0.3, 0.3):
        _disc(
            frame, face + right * radius * (0.38 * facing + eye * (1 - 0.5 * abs(facing))), radius * 0.1, (40, 32, 30)
        )


def _disc(frame: Frame, centre: Vector, radius: float, colour: Colour) -> None:
    cv2.circle(frame, _fixed(centre).tolist(), round(radius * (1 << _SHIFT)), colour, -1, cv2.LINE_AA, _SHIFT)


def _fixed(points: Vector) -> NDArray[np.int32]:
    """Pixel coordinates as OpenCV's fixed-point numbers."""
    return np.round(points * (1 << _SHIFT)).astype(np.int32)


def _shaded(colour: Colour, shade: float) -> Colour:
    return round(colour[0] * shade), round(colour[1] * shade), round(colour[2] * shade)


def _varied(rng: np.random.Generator, colour: Colour) -> Colour:
    red, green, blue = (int(np.clip(part + rng.normal(0, 8), 0, 255)) for part in colour)
    return red, green, blue


def _cloth(rng: np.random.Generator) -> Colour:
    hue, saturation, value = rng.random() * 180, rng.uniform(20, 220), rng.uniform(40, 240)
    red, green, blue = cv2.cvtColor(np.array([[[hue, saturation, value]]], np.uint8), cv2.COLOR_HSV2RGB)[0, 0]
    return int(red), int(green), int(blue)
