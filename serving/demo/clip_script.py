"""What happens in the demo clip: 14 s in a park. Fixed before either model was trained."""

from __future__ import annotations

import math
from fractions import Fraction

from serving.demo import seeds
from serving.demo.actor import Actor, Segment
from serving.demo.figure import Look, sample_look
from serving.demo.scene import Camera, Scene
from serving.demo.skeleton import Action, sample_style

FPS = 30
FRAMES = 419
SIZE = (360, 640)
KEYFRAME_INTERVAL = 11
SLOT_FRAMES = 3
PLACE = seeds.DEMO[10]
ACTOR_SEEDS = (100, 101)

# (start in s, action, degrees to the right of the viewer, body heights a second)
_Line = tuple[float, Action, float, float]
_FIRST: tuple[_Line, ...] = (
    (-5.0, "walk", 82, 0.62),
    (3.4, "wave", 12, 0.0),
    (5.6, "stand", 8, 0.0),
    (7.85, "jump", 15, 0.0),
    (10.0, "walk", -80, 0.64),
    (11.2, "fall", -80, 0.0),
)
_SECOND: tuple[_Line, ...] = (
    (-5.0, "run", -84, 1.45),
    (8.5, "stand", -60, 0.0),
    (11.9, "run", 84, 1.45),
    (12.85, "stand", 20, 0.0),
)


def demo_scene() -> Scene:
    """The scene of the clip: one person walks in, waves, stands, jumps, walks and falls; another one runs by twice."""
    camera = Camera(horizon=0.5, pitch=0.18, noise=1.5)
    first = _actor(ACTOR_SEEDS[0], _FIRST, height=0.58, x=-0.02, ground=0.88, anchor_s=0.0)
    second = _actor(ACTOR_SEEDS[1], _SECOND, height=0.5, x=1.9, ground=0.8, anchor_s=5.6)
    return Scene((first, second), camera, PLACE, focus_s=FRAMES / FPS / 2)


def frame_time_s(index: int) -> float:
    """Time of a frame of the clip, counted from 0."""
    return float(Fraction(index, FPS))


def _actor(seed: int, script: tuple[_Line, ...], *, height: float, x: float, ground: float, anchor_s: float) -> Actor:
    rng = seeds.generator(seeds.DEMO, seed)
    look: Look = sample_look(rng)
    segments = tuple(
        Segment(start_s, action, sample_style(rng, action, side=-1), math.radians(yaw), speed)
        for start_s, action, yaw, speed in script
    )
    return Actor(look, height, x, ground, anchor_s, segments)
