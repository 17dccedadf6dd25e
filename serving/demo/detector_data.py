"""Clips for the detector, drawn on the fly: as the product would hand them over, and the people of the key frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.main import resize
from serving.demo.scene import Person
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


def sample_clip(rng: np.random.Generator, *, source_fps: float | None = None, height: int | None = None) -> ClipSample:
    """Draw a scene and take a clip from it near its focus.

    Args:
        rng: Where all chance comes from.
        source_fps: Frame rate of the video; None draws one.
        height: Height of the video in pixels; None draws one.
    """
    aspect = sample_aspect(rng)
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
