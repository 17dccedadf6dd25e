"""Slots of the demo world as the product would ask about them: three pictures, Stage 1's findings, the right answer.

What is right is said by `world.slot_action`; the description counts the people that count there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.config import PipelineConfig
from pipeline_ver2.prompts import NOBODY, Question, SlotImage, encode_image
from pipeline_ver2.wire import Detection, LabelScore
from serving.demo.world import (
    GRID_FPS,
    LABELS,
    VISIBLE,
    Action,
    Person,
    Scene,
    grid_times,
    most_notable,
    sample_scene,
    sample_source_fps,
    slot_action,
)

Frame = NDArray[np.uint8]
Findings = tuple[tuple[Detection, ...], ...]

IMAGES = 3
KEYFRAME_INTERVAL = 11
NOBODY_SHARE = 0.08
WRONG_SHARE = 1 / 3

_REPEAT_SHARE = 0.06
_SHUFFLED_SHARE = 0.06
_NUMBERS = ("Nobody", "One person", "Two persons", "Three persons")
# How Stage 1 errs when it means well: a miss, another label, a second label, a person that is not there.
_MISS, _CONFUSE, _SECOND, _GHOST = 0.07, 0.08, 0.15, 0.03
_THRESHOLD = 0.25


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of a slot: the answer's action, and the action of each actor that counts."""

    action: str
    actors: dict[int, Action]

    @property
    def description(self) -> str:
        """A short sentence about it."""
        number = _NUMBERS[min(len(self.actors), len(_NUMBERS) - 1)]
        if not self.actors:
            return f"{number} is seen."
        return (
            f"{number} {self.action}s." if len(self.actors) == 1 else f"{number}; the most notable one {self.action}s."
        )

    @property
    def answer(self) -> str:
        """The answer as the model should write it."""
        return json.dumps({"action": self.action, "description": self.description}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Slot:
    """Three pictures `(H, W, 3)` uint8 RGB with their times in the source, what is true of each, and findings.

    `labels` are the actions the prompt offers, in its order.
    """

    frames: tuple[Frame, ...]
    persons: tuple[tuple[Person, ...], ...]
    times_s: tuple[float, ...]
    repeated: tuple[bool, ...]
    findings: Findings
    truth: Truth
    labels: tuple[str, ...] = LABELS


@dataclass(frozen=True, slots=True)
class Take:
    """A scene filmed at a frame rate, and which of its grid frames are a slot's pictures.

    `start_s` and `times_s` are scene times: of the source's first frame, and of the pictures.
    """

    scene: Scene
    source_fps: float
    start_s: float
    numbers: tuple[int, ...]

    def grid(self, numbers: Sequence[int]) -> list[float]:
        """Scene times of what grid frames show."""
        return [float(time_s) for time_s in grid_times(numbers, self.source_fps, self.start_s)]

    @property
    def times_s(self) -> list[float]:
        """Scene times of the pictures."""
        return self.grid(self.numbers)


def sample_take(rng: np.random.Generator, aspect: float, *, two_share: float) -> Take:
    """Draw a scene and when its pictures are taken; some slots are filled up by repeating their last picture."""
    scene = sample_scene(rng, aspect=aspect, two_share=two_share, nobody_share=NOBODY_SHARE)
    first = int(rng.integers(0, 60))
    numbers = [first + KEYFRAME_INTERVAL * index for index in range(IMAGES)]
    start_s = scene.focus_s + float(rng.uniform(-0.25, 0.25)) - numbers[1] / GRID_FPS
    source_fps = sample_source_fps(rng)
    if rng.random() < _REPEAT_SHARE:
        kept = int(rng.integers(1, IMAGES))
        numbers[kept:] = [numbers[kept - 1]] * (IMAGES - kept)
    return Take(scene, source_fps, start_s, tuple(numbers))


def slot_of(rng: np.random.Generator, take: Take, size: tuple[int, int], wrong_share: float = WRONG_SHARE) -> Slot:
    """The slot of a take at a size `(height, width)`, with simulated findings."""
    shown = take.times_s
    pictures = {time_s: take.scene.render(time_s, size) for time_s in dict.fromkeys(shown)}
    persons = tuple(tuple(pictures[time_s][1]) for time_s in shown)
    origin_s = 10 ** rng.uniform(0, 4) - 1 if rng.random() < 0.5 else rng.uniform(0, 20)
    found = sample_findings(rng, persons, wrong=bool(rng.random() < wrong_share))
    return Slot(
        frames=tuple(pictures[time_s][0] for time_s in shown),
        persons=persons,
        times_s=tuple(float(origin_s + time_s - shown[0]) for time_s in shown),
        repeated=tuple(index > 0 and time_s == shown[index - 1] for index, time_s in enumerate(shown)),
        findings=tuple(found[shown.index(time_s)] for time_s in shown),
        truth=slot_truth(persons),
        labels=tuple(rng.permutation(LABELS).tolist()) if rng.random() < _SHUFFLED_SHARE else LABELS,
    )


def sample_slot(
    rng: np.random.Generator, size: tuple[int, int], *, two_share: float = 0.35, wrong_share: float = WRONG_SHARE
) -> Slot:
    """Draw a slot.

    Args:
        rng: Where all chance comes from.
        size: `(height, width)` of the pictures.
        two_share: Share of scenes with two people.
        wrong_share: Share of slots whose findings are wrong or missing.
    """
    return slot_of(rng, sample_take(rng, size[1] / size[0], two_share=two_share), size, wrong_share)


def slot_truth(persons: Sequence[Sequence[Person]]) -> Truth:
    """The right answer for what each picture shows."""
    actors: dict[int, Action] = {}
    for actor in sorted({person.actor for picture in persons for person in picture}):
        action = slot_action([[person for person in picture if person.actor == actor] for picture in persons])
        if action is not None:
            actors[actor] = action
    return Truth(most_notable(list(actors.values())) or NOBODY, actors)


def question_of(slot: Slot, settings: PipelineConfig) -> Question:
    """The slot as the product asks about it, its pictures encoded as JPEG."""
    jpegs = [encode_image(frame, max_px=settings.image_max_px, quality=settings.jpeg_quality) for frame in slot.frames]
    return question_with(slot, jpegs)


def question_with(slot: Slot, jpegs: Sequence[bytes]) -> Question:
    """The slot as the product asks about it, with given encoded pictures."""
    images = [SlotImage(*image) for image in zip(jpegs, slot.times_s, slot.repeated, strict=True)]
    return Question(tuple(images), slot.findings, slot.labels)


def sample_findings(rng: np.random.Generator, persons: Sequence[Sequence[Person]], *, wrong: bool) -> Findings:
    """What Stage 1 might say of the pictures; if `wrong`, it misleads, and sounds as sure as when it is right."""
    if not wrong:
        return tuple(_findings(rng, picture, {}) for picture in persons)
    actors = {person.actor for picture in persons for person in picture}
    draw = rng.random()
    if draw < 0.25:
        return tuple(() for _ in persons)
    if draw < 0.35:
        blind = int(rng.integers(len(persons)))
        return tuple(() if index == blind else _random_findings(rng) for index in range(len(persons)))
    swapped = {actor: _other(rng, None) for actor in actors}
    if not actors or draw < 0.5:
        lie = LABELS[rng.integers(len(LABELS))]
        return tuple((_detection(rng, lie),) for _ in persons)
    return tuple(_findings(rng, picture, swapped) for picture in persons)


def _findings(rng: np.random.Generator, picture: Sequence[Person], instead: dict[int, Action]) -> tuple[Detection, ...]:
    """Findings for one picture; `instead` says which actors are taken to do something else."""
    found = []
    for person in picture:
        if person.visible > VISIBLE and rng.random() >= _MISS:
            action = instead.get(person.actor, person.action)
            found.append(_detection(rng, _other(rng, action) if rng.random() < _CONFUSE else action, person))
    if rng.random() < _GHOST:
        found.append(_detection(rng, LABELS[rng.integers(len(LABELS))], low=True))
    return tuple(found)


def _random_findings(rng: np.random.Generator) -> tuple[Detection, ...]:
    return tuple(_detection(rng, LABELS[rng.integers(len(LABELS))]) for _ in range(rng.integers(1, 3)))


def _other(rng: np.random.Generator, action: Action | None) -> Action:
    return [label for label in LABELS if label != action][rng.integers(len(LABELS) - (action is not None))]


def _detection(
    rng: np.random.Generator, action: Action, person: Person | None = None, *, low: bool = False
) -> Detection:
    score = float(rng.uniform(_THRESHOLD, 0.5) if low else _THRESHOLD + (1 - _THRESHOLD) * rng.beta(4, 2))
    labels = [LabelScore(name=action, score=score)]
    if rng.random() < _SECOND:
        second = float(rng.uniform(_THRESHOLD, max(_THRESHOLD + 0.01, score)))
        labels.append(LabelScore(name=_other(rng, action), score=second))
    jitter = rng.normal(0, 0.02, 4)
    x1, y1, x2, y2 = person.box if person else (0.2, 0.2, 0.5, 0.8)
    width, height = (x2 - x1) * 640, (y2 - y1) * 360
    box = (x1 * 640 + jitter[0] * width, y1 * 360 + jitter[1] * height)
    return Detection(
        box=(*box, x2 * 640 + jitter[2] * width, math.ceil(y2 * 360 + jitter[3] * height)), labels=tuple(labels)
    )
