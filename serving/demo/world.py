"""The demo world: draws scenes of people who stand, walk, run, wave, jump or fall, one scene for a seed.

    scene = sample_scene(seeds.generator(seeds.TRAIN, 7))
    rgb, persons = scene.render(scene.focus_s, (360, 640))

A scene is a function of time, so a frame rate is a choice of times: `grid_times` gives those at which the product's
frame grid shows a source of any rate. Sampled people are in the picture around `scene.focus_s`, and something
interesting (a fall, a change of action) happens near it; take clips and slots around that time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from serving.demo.actor import Actor, Segment
from serving.demo.figure import sample_look
from serving.demo.scene import Camera, Person, Scene
from serving.demo.skeleton import LABELS, Action, Vector, sample_style

__all__ = ["ASPECTS", "GRID_FPS", "LABELS", "NOTABLE", "VISIBLE", "Action", "Camera", "Person", "Scene"]
__all__ += ["grid_times", "most_notable", "sample_aspect", "sample_scene", "sample_source_fps", "slot_action"]

GRID_FPS = 30
VISIBLE = 0.35
"""A person counts when more than this share of its box is seen."""
NOTABLE: tuple[Action, ...] = ("fall", "jump", "wave", "run", "walk", "stand")
"""The actions, most notable first."""
ASPECTS = (16 / 9, 4 / 3)

_FOCUS_S = 1.5
_LONG_BEFORE_S = -3.0
_CHANGE_SHARE = 0.15
_SPEEDS = {"walk": (0.6, 0.85), "run": (1.3, 1.9)}


def sample_aspect(rng: np.random.Generator) -> float:
    """Width over height of a video: mostly 16:9."""
    return ASPECTS[0] if rng.random() < 0.8 else ASPECTS[1]


def sample_source_fps(rng: np.random.Generator) -> float:
    """The frame rate of a video, 10 to 60: half of them 30, many of the usual ones, some odd ones."""
    usual = (30.0, 15.0, 25.0, 24.0, 60.0, 10.0, 20.0)
    share = (0.50, 0.16, 0.07, 0.05, 0.06, 0.03, 0.03)
    pick = int(np.searchsorted(np.cumsum(share), rng.random(), side="right"))
    return usual[pick] if pick < len(usual) else float(rng.uniform(10, 60))


def grid_times(frames: Sequence[int], source_fps: float, start_s: float) -> Vector:
    """Scene times of what the product's 30 fps grid shows of a source of constant frame rate.

    Grid frame n is the last source frame with time <= (n + 0.5) / 30, so slow sources show frames twice.

    Args:
        frames: Grid frame numbers, from 0.
        source_fps: Frames a second of the source.
        start_s: Scene time of the source's first frame.

    Returns:
        float64, one time for each of `frames`, in seconds.
    """
    # The small shift keeps exact ties (15 and 60 fps have them) on the side of the exact arithmetic.
    shown = np.floor((np.asarray(frames) + 0.5) * source_fps / GRID_FPS + 1e-9)
    return np.asarray(start_s + shown / source_fps, np.float64)


def most_notable(actions: Sequence[Action]) -> Action | None:
    """The most notable of some actions; None if there are none."""
    return min(actions, key=NOTABLE.index, default=None)


def slot_action(images: Sequence[Sequence[Person]]) -> Action | None:
    """The action of a slot: what its pictures, taken together, show.

    Somebody counts if it is well visible in at least two of the pictures (in one, if there is only one). Its action is
    the one it shows in most of those, the more notable one of equals. The most notable action of all people is the
    slot's; None means that nobody counts.
    """
    shown: dict[int, list[Action]] = {}
    for person in (person for image in images for person in image if person.visible > VISIBLE):
        shown.setdefault(person.actor, []).append(person.action)
    needed = min(2, len(images))
    counts = [Counter(actions) for actions in shown.values() if len(actions) >= needed]
    return most_notable([min(count, key=lambda action: (-count[action], NOTABLE.index(action))) for count in counts])


def sample_scene(
    rng: np.random.Generator,
    *,
    aspect: float = ASPECTS[0],
    persons: int | None = None,
    two_share: float = 0.35,
    nobody_share: float = 0.05,
) -> Scene:
    """Draw a scene.

    Args:
        rng: Where all chance comes from.
        aspect: Width over height of the pictures that will be drawn.
        persons: How many people; None draws 0, 1 or 2 by the shares.
        two_share: Share of scenes with two people.
        nobody_share: Share of empty scenes.
    """
    if persons is None:
        draw = rng.random()
        persons = 0 if draw < nobody_share else (2 if draw < nobody_share + two_share else 1)
    camera = _sample_camera(rng)
    actors = tuple(_sample_actor(rng, aspect) for _ in range(persons))
    return Scene(actors, camera, int(rng.integers(1 << 40)), _FOCUS_S)


def _sample_camera(rng: np.random.Generator) -> Camera:
    moving = rng.random() < 0.3
    return Camera(
        horizon=float(rng.uniform(0.3, 0.55)),
        pitch=float(rng.uniform(0.1, 0.3)),
        drift=(float(rng.normal(0, 0.02)), float(rng.normal(0, 0.008))) if moving else (0.0, 0.0),
        shake=float(rng.uniform(0, 0.006)) if rng.random() < 0.25 else 0.0,
        gain=float(rng.uniform(0.75, 1.2)),
        bias=float(rng.uniform(-15, 20)),
        noise=float(rng.uniform(0, 7)) if rng.random() < 0.7 else 0.0,
        blur=float(rng.uniform(0.001, 0.004)) if rng.random() < 0.3 else 0.0,
    )


def _sample_actor(rng: np.random.Generator, aspect: float) -> Actor:
    height = float(rng.uniform(0.38, 0.82))
    action = LABELS[rng.integers(len(LABELS))]
    x = float(rng.uniform(0.12, 0.88)) * aspect
    return Actor(
        look=sample_look(rng),
        height=height,
        x=x,
        ground=float(rng.uniform(max(0.62, height + 0.05), 0.97)),
        anchor_s=_FOCUS_S,
        segments=_sample_script(rng, action, x / aspect),
    )


def _sample_script(rng: np.random.Generator, action: Action, across: float) -> tuple[Segment, ...]:
    """What an actor does around the focus; `across` is its place in 0..1 of the picture's width."""
    if action == "fall":
        before: Action = ("stand", "walk", "walk", "run")[rng.integers(4)]
        start_s = _FOCUS_S - float(rng.uniform(-0.1, 1.5))
        first = _sample_segment(rng, before, _LONG_BEFORE_S)
        return first, _falling(rng, first, start_s, across)
    main = _sample_segment(rng, action, _LONG_BEFORE_S)
    if rng.random() >= _CHANGE_SHARE:
        return (main,)
    other: Action = LABELS[rng.integers(len(LABELS) - 1)]
    return main, _sample_segment(rng, other, _FOCUS_S + float(rng.uniform(-0.5, 0.4)))


def _falling(rng: np.random.Generator, before: Segment, start_s: float, across: float) -> Segment:
    """A fall that goes on from a segment, mostly towards the middle of the picture."""
    style = sample_style(rng, "fall", side=_side_towards_middle(rng, across))
    return Segment(start_s, "fall", style, before.yaw, 0.0)


def _side_towards_middle(rng: np.random.Generator, across: float) -> int:
    inward = 1 if across < 0.5 else -1
    return inward if rng.random() < 0.75 else -inward


def _sample_segment(rng: np.random.Generator, action: Action, start_s: float) -> Segment:
    speed = float(rng.uniform(*_SPEEDS[action])) if action in _SPEEDS else 0.0
    return Segment(start_s, action, sample_style(rng, action), _sample_yaw(rng, action), speed)


def _sample_yaw(rng: np.random.Generator, action: Action) -> float:
    """Walkers and runners are mostly seen from the side, waving people from the front."""
    side = 1 if rng.random() < 0.5 else -1
    if action in _SPEEDS:
        low, high = (55, 118) if action == "run" or rng.random() < 0.8 else (0, 55)
        return side * math.radians(rng.uniform(low, high))
    return side * math.radians(rng.uniform(0, 55 if action == "wave" else 85))
