"""A scene: actors in front of a place, seen by a camera; draws the picture at a time and says what is true of it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import cv2
import numpy as np

from serving.demo.actor import Actor
from serving.demo.figure import Frame, draw_figure, draw_shadow, extent
from serving.demo.scenery import draw_scenery
from serving.demo.skeleton import Action, Vector

Box = tuple[float, float, float, float]

_MARGIN = 0.06
_NOISE_SIDE = 1600


@dataclass(frozen=True, slots=True)
class Person:
    """What is true of one person in one picture.

    `box` is (x1, y1, x2, y2) in 0..1 of the picture, clipped to it. `visible` is the share of the whole box that is
    inside the picture and not behind the box of somebody nearer. `joints` is `(16, 2)` float64 in the order of
    `skeleton.JOINTS`: x and y in 0..1 of the picture, possibly outside it. `actor` is the index in the scene.
    """

    actor: int
    action: Action
    box: Box
    visible: float
    joints: Vector


@dataclass(frozen=True, slots=True)
class Camera:
    """The picture's geometry and faults.

    `horizon` (from the top), `drift` (a second), `shake` and `blur` (sigma) are in picture heights, `pitch` in
    radians; `gain` and `bias` change grey levels, `noise` is their standard deviation.
    """

    horizon: float = 0.45
    pitch: float = 0.2
    drift: tuple[float, float] = (0.0, 0.0)
    shake: float = 0.0
    gain: float = 1.0
    bias: float = 0.0
    noise: float = 0.0
    blur: float = 0.0


@dataclass(frozen=True, slots=True)
class _Figure:
    """One actor placed in a picture; lengths in pixels."""

    actor: int
    action: Action
    joints: Vector
    height: float
    box: Box
    ground: float
    facing: float
    shadow: tuple[float, float]


@dataclass(frozen=True)
class Scene:
    """Actors in front of a place (a seed of `draw_scenery`). Same scene, time and size: same bytes.

    People are surely in the picture around `focus_s`.
    """

    actors: tuple[Actor, ...]
    camera: Camera
    place: int
    focus_s: float
    _places: dict[tuple[int, int], Frame] = field(default_factory=dict, repr=False, compare=False)

    def render(self, time_s: float, size: tuple[int, int]) -> tuple[Frame, list[Person]]:
        """Draw the scene at a time.

        Args:
            time_s: Scene time, in seconds.
            size: `(height, width)` in pixels.

        Returns:
            `(rgb, persons)`: `(height, width, 3)` uint8 RGB, and everybody of whom something lies in the picture.
        """
        frame = self._background(size, self._view(time_s))
        figures = self._figures(time_s, size)
        for figure in figures:
            look = self.actors[figure.actor].look
            draw_shadow(frame, (figure.shadow[0], figure.ground), (figure.shadow[1], max(1.0, 0.045 * figure.height)))
            draw_figure(frame, figure.joints, figure.height, look, figure.facing)
        return self._exposed(frame, time_s), _truth(figures, size)

    def persons_at(self, time_s: float, size: tuple[int, int]) -> list[Person]:
        """What `render` says of the people, without drawing."""
        return _truth(self._figures(time_s, size), size)

    def _view(self, time_s: float) -> tuple[float, float]:
        """How far the camera has wandered to the right and down, in picture heights, within the margin."""
        since = time_s - self.focus_s
        camera, limit = self.camera, 0.9 * _MARGIN
        x = camera.drift[0] * since + camera.shake * math.sin(17.3 * since)
        y = camera.drift[1] * since + camera.shake * math.sin(21.1 * since + 1)
        return max(-limit, min(limit, x)), max(-limit, min(limit, y))

    def _background(self, size: tuple[int, int], view: tuple[float, float]) -> Frame:
        height, width = size
        margin = math.ceil(_MARGIN * height)
        if size not in self._places:
            self._places[size] = draw_scenery(self.place, (height + 2 * margin, width + 2 * margin))
        left, top = (margin + round(part * height) for part in view)
        return self._places[size][top : top + height, left : left + width].copy()

    def _figures(self, time_s: float, size: tuple[int, int]) -> list[_Figure]:
        """Everybody, the farthest first."""
        placed = [self._placed(index, time_s, size[0]) for index in range(len(self.actors))]
        return sorted(placed, key=lambda figure: figure.ground)

    def _placed(self, index: int, time_s: float, height: int) -> _Figure:
        actor, camera = self.actors[index], self.camera
        body, yaw = actor.body_at(time_s)
        right, nearer = actor.moved(time_s)
        # Whole pixels, as the background is shifted by whole pixels.
        shift_x, shift_y = (round(part * height) for part in self._view(time_s))
        scale = 1 / (1 - 0.14 * max(-1.2, min(1.2, nearer)))
        unit = actor.height * scale * height
        x = (actor.x + right * actor.height) * height - shift_x
        ground = (camera.horizon + (actor.ground - camera.horizon) * scale) * height - shift_y
        up = body[:, 1] * math.cos(camera.pitch) + body[:, 2] * math.sin(camera.pitch)
        joints = np.stack((x + body[:, 0] * unit, ground - up * unit, body[:, 2]), axis=1)
        left_end, right_end = joints[:, 0].min(), joints[:, 0].max()
        return _Figure(
            actor=index,
            action=actor.action_at(time_s),
            joints=joints,
            height=unit,
            box=extent(joints, unit, actor.look),
            ground=ground,
            facing=math.sin(yaw),
            shadow=(float(left_end + right_end) / 2, float(right_end - left_end) * 0.4 + 0.06 * unit),
        )

    def _exposed(self, frame: Frame, time_s: float) -> Frame:
        """The frame with the camera's blur, exposure and noise."""
        camera = self.camera
        if camera.blur:
            frame = np.asarray(cv2.GaussianBlur(frame, (0, 0), camera.blur * frame.shape[0]), np.uint8)
        if camera.gain != 1 or camera.bias:
            levels = np.clip(np.arange(256) * camera.gain + camera.bias, 0, 255).astype(np.uint8)
            frame = np.asarray(cv2.LUT(frame, levels), np.uint8)
        return _noisy(frame, camera.noise, self.place + round(time_s * 1000)) if camera.noise else frame


def _truth(figures: list[_Figure], size: tuple[int, int]) -> list[Person]:
    """The people of whom something lies in the picture, nearest first."""
    height, width = size
    scale = np.array((width, height), np.float64)
    nearer: list[Box] = []
    persons: list[Person] = []
    for figure in reversed(figures):
        x1, y1, x2, y2 = figure.box
        clipped = (max(0.0, x1), max(0.0, y1), min(float(width), x2), min(float(height), y2))
        inside = _area(clipped)
        if inside > 0:
            hidden = max((_area(_overlap(clipped, box)) for box in nearer), default=0.0)
            persons.append(
                Person(
                    actor=figure.actor,
                    action=figure.action,
                    box=(clipped[0] / width, clipped[1] / height, clipped[2] / width, clipped[3] / height),
                    visible=(inside - hidden) / _area(figure.box),
                    joints=figure.joints[:, :2] / scale,
                )
            )
        nearer.append(figure.box)
    return persons


def _overlap(first: Box, second: Box) -> Box:
    return max(first[0], second[0]), max(first[1], second[1]), min(first[2], second[2]), min(first[3], second[3])


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


@functools.cache
def _noise_plane() -> Frame:
    """One fixed plane of noise around 128, with a standard deviation of 32 levels."""
    plane = np.random.default_rng(0).normal(128, 32, (_NOISE_SIDE, _NOISE_SIDE, 3))
    return np.clip(plane, 0, 255).astype(np.uint8)


def _noisy(frame: Frame, deviation: float, seed: int) -> Frame:
    """Add noise: a crop of the fixed plane at a place that the seed decides, which costs nearly nothing."""
    height, width = frame.shape[:2]
    left = seed * 7919 % max(1, _NOISE_SIDE - width)
    top = seed * 104_729 % max(1, _NOISE_SIDE - height)
    crop = _noise_plane()[top : top + height, left : left + width]
    return np.asarray(cv2.addWeighted(frame, 1, crop, deviation / 32, -4 * deviation), np.uint8)
