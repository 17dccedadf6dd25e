"""Held-out clips and slots of the demo world: from seeds that no training sees, drawn once for all measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.config import PipelineConfig
from pipeline_ver2.main import resize
from pipeline_ver2.prompts import Question
from serving.demo import seeds
from serving.demo.answerer_slots import Take, Truth, question_of, sample_take, slot_of
from serving.demo.detector_data import ClipSample, sample_clip
from serving.demo.scene import Scene
from serving.demo.world import sample_aspect, sample_scene

SEED_SETS: Mapping[str, range] = {"A": seeds.VALIDATION_A, "B": seeds.VALIDATION_B}

_VIDEO_HEIGHT = 360
_WIDE_VIDEOS, _NARROW_VIDEOS = ((360, 640), (432, 768)), ((480, 640), (256, 340))
_TWO_SHARE = 0.35
# A set's clips begin with its first seed, its slots with this one; then come its empty scenes.
_FIRST_SLOT, _FIRST_EMPTY = 50_000, 90_000


@dataclass(frozen=True, slots=True)
class HeldOutSlot:
    """A slot for every measure: what is right, the question with simulated findings, and the detector's clips.

    `clips` is `(K, T, h, w, 3)` uint8 RGB, the frames up to each different picture, oldest first; `clip_of` says which
    of them ends at each picture. `size` is (width, height) of the video.
    """

    truth: Truth
    question: Question
    clips: NDArray[np.uint8]
    clip_of: tuple[int, ...]
    size: tuple[int, int]


def draw_clip(seed_set: range, number: int, source_fps: float) -> ClipSample:
    """The `number`-th clip of a seed set, of a video of a frame rate."""
    return sample_clip(seeds.generator(seed_set, number), source_fps=source_fps, height=_VIDEO_HEIGHT)


def draw_slot(
    seed_set: range, number: int, settings: PipelineConfig, clip_length: int, image_size: tuple[int, int]
) -> HeldOutSlot:
    """The `number`-th slot of a seed set, one third of its simulated findings wrong.

    Args:
        seed_set: The seeds.
        number: Which slot.
        settings: How the product encodes pictures.
        clip_length: Frames of the detector's clips.
        image_size: `(height, width)` of the detector's frames.
    """
    rng = seeds.generator(seed_set, _FIRST_SLOT + number)
    videos = _WIDE_VIDEOS if sample_aspect(rng) > 1.5 else _NARROW_VIDEOS
    height, width = videos[rng.integers(len(videos))]
    take = sample_take(rng, width / height, two_share=_TWO_SHARE)
    slot = slot_of(rng, take, (height, width))
    different = list(dict.fromkeys(take.numbers))
    return HeldOutSlot(
        truth=slot.truth,
        question=question_of(slot, settings),
        clips=_clips(take, different, (height, width), clip_length, image_size),
        clip_of=tuple(different.index(number) for number in take.numbers),
        size=(width, height),
    )


def empty_scene(seed_set: range) -> Scene:
    """A scene of a seed set in which nobody ever is."""
    return sample_scene(seeds.generator(seed_set, _FIRST_EMPTY), persons=0)


def _clips(
    take: Take, ends: list[int], size: tuple[int, int], length: int, image_size: tuple[int, int]
) -> NDArray[np.uint8]:
    """The clips that end at some grid frames; before the first frame of the source that one repeats."""
    times = [take.grid([max(0, end - back) for back in reversed(range(length))]) for end in ends]
    drawn = {
        time_s: resize(take.scene.render(time_s, size)[0], image_size)
        for time_s in {at for clip in times for at in clip}
    }
    return np.stack([np.stack([drawn[time_s] for time_s in clip]) for clip in times])
