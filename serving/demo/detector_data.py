"""Clips for the detector, drawn on the fly: as the product would hand them over, and the people of the key frame."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.main import resize
from serving.demo.scene import Person
from serving.demo.skeleton import LABELS
from serving.demo.world import VISIBLE, grid_times, sample_aspect, sample_scene, sample_source_fps

CLIP_LENGTH = 16
SIDE = 224

# Videos are drawn at full size for a share of the samples; smaller ones look the same at 224 pixels and cost half.
_FULL_HEIGHT, _SMALL_HEIGHT = 360, 240
_FULL_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class ClipSample:
    """A clip `(16, 224, 224, 3)` uint8 RGB, oldest first, and the well visible people of its last frame."""

    frames: NDArray[np.uint8]
    persons: tuple[Person, ...]


@dataclass(frozen=True, slots=True)
class TrainingView:
    """What the network sees of a clip, and what it should say.

    `picture` is the key frame, `(224, 224, 3)` uint8 RGB; `halved` the clip at half its size, `(16, 112, 112, 3)`;
    `boxes` `(P, 4)` float32, x1, y1, x2, y2 in pixels of the picture; `actions` `(P,)` int64 indices of `LABELS`.
    """

    picture: NDArray[np.uint8]
    halved: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    actions: NDArray[np.int64]

    def mirrored(self) -> TrainingView:
        """The view with left and right exchanged."""
        boxes = self.boxes[:, [2, 1, 0, 3]] * (-1, 1, -1, 1) + (SIDE, 0, SIDE, 0)
        return TrainingView(self.picture[:, ::-1], self.halved[:, :, ::-1], boxes.astype(np.float32), self.actions)

    def recoloured(self) -> TrainingView:
        """The view with its colour channels turned round."""
        return TrainingView(self.picture[..., [1, 2, 0]], self.halved[..., [1, 2, 0]], self.boxes, self.actions)


def training_view(sample: ClipSample) -> TrainingView:
    """A sample as the network is trained on it; halving averages 2x2 pixels, as the network itself does."""
    half = (SIDE // 2, SIDE // 2)
    halved = np.stack([cv2.resize(frame, half, interpolation=cv2.INTER_AREA) for frame in sample.frames])
    boxes = np.array([person.box for person in sample.persons], np.float32).reshape(-1, 4) * SIDE
    actions = np.array([LABELS.index(person.action) for person in sample.persons], np.int64)
    return TrainingView(sample.frames[-1], halved.astype(np.uint8, copy=False), boxes, actions)


def sample_clip(
    rng: np.random.Generator, *, source_fps: float | None = None, height: int | None = None, falling: bool = False
) -> ClipSample:
    """Draw a scene and take a clip from it near its focus.

    Args:
        rng: Where all chance comes from.
        source_fps: Frame rate of the video; None draws one.
        height: Height of the video in pixels; None draws one.
        falling: Draw scenes until somebody falls, or has fallen, at the focus.
    """
    aspect = sample_aspect(rng)
    scene = sample_scene(rng, aspect=aspect)
    while falling and not any(actor.action_at(scene.focus_s) == "fall" for actor in scene.actors):
        scene = sample_scene(rng, aspect=aspect)
    fps = sample_source_fps(rng) if source_fps is None else source_fps
    rows = (_FULL_HEIGHT if rng.random() < _FULL_SHARE else _SMALL_HEIGHT) if height is None else height
    first = int(rng.integers(60))
    times = grid_times(range(first, first + CLIP_LENGTH), fps, 0.0)
    times += scene.focus_s + float(rng.uniform(-0.25, 0.25)) - times[-1]
    size = (rows, round(rows * aspect))
    shown: dict[float, NDArray[np.uint8]] = {}
    for time_s in times.tolist():
        if time_s not in shown:
            shown[time_s] = resize(scene.render(time_s, size)[0], (SIDE, SIDE))
    persons = scene.persons_at(float(times[-1]), size)
    frames = np.stack([shown[time_s] for time_s in times.tolist()])
    return ClipSample(frames, tuple(person for person in persons if person.visible > VISIBLE))
