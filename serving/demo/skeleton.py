"""How a drawn person moves: a pose is a vector of joint angles, each action a function of time.

Lengths are in body heights, angles in radians, times in seconds. Body frame: forward, up, left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Action = Literal["stand", "walk", "run", "wave", "jump", "fall"]
LABELS: tuple[Action, ...] = ("stand", "walk", "run", "wave", "jump", "fall")

JOINTS = (
    "head", "neck",
    "left_shoulder", "left_elbow", "left_hand", "right_shoulder", "right_elbow", "right_hand",
    "left_hip", "left_knee", "left_ankle", "left_toe", "right_hip", "right_knee", "right_ankle", "right_toe",
)  # fmt: skip
# Pose vector: whole body, then six angles of the left side, six of the right.
_LEAN, _SWAY, _AIR, _LEFT, _RIGHT = 0, 1, 2, 3, 10
_HIP, _SPREAD, _KNEE, _ARM, _RAISE, _ELBOW, _FOREARM = range(7)
_POSE_SIZE = 17

_TORSO, _HEAD, _THIGH, _SHIN, _UPPER_ARM, _FOREARM_LENGTH, _FOOT = 0.29, 0.125, 0.245, 0.235, 0.165, 0.155, 0.075
_SHOULDER_HALF, _HIP_HALF, _ANKLE_HEIGHT = 0.098, 0.055, 0.035

_FALL_SEEN = 0.08
_FALL_POWER = 1.8

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Style:
    """How one person does one action: pace and size differ from person to person."""

    period_s: float
    amplitude: float
    phase: float
    left_handed: bool
    both_hands: bool
    arms_out: float
    fall_s: float
    fall_side: int
    fall_depth: float


_PERIODS: Mapping[Action, tuple[float, float]] = {
    "stand": (2.5, 4.5),
    "walk": (0.98, 1.2),
    "run": (0.6, 0.74),
    "wave": (0.42, 0.58),
    "jump": (0.66, 0.8),
    "fall": (1.0, 1.0),
}


def sample_style(rng: np.random.Generator, action: Action, *, side: int = 1) -> Style:
    """Draw the manner in which one person does an action; `side` is where it falls, 1 to the right, -1 to the left."""
    return Style(
        period_s=float(rng.uniform(*_PERIODS[action])),
        amplitude=float(rng.uniform(0.85, 1.15)),
        phase=float(rng.random()),
        left_handed=bool(rng.random() < 0.5),
        both_hands=bool(rng.random() < 0.2),
        arms_out=float(rng.uniform(0.06, 0.22)),
        fall_s=float(rng.uniform(0.45, 0.9)),
        fall_side=side,
        fall_depth=float(rng.uniform(-0.35, 0.35)),
    )


def fall_progress(style: Style, since_s: float) -> float:
    """How far a fall has come, 0 (upright) to 1 (lies), `since_s` after its start."""
    return math.pow(min(1.0, max(0.0, since_s / style.fall_s)), _FALL_POWER)


def label_delay_s(action: Action, style: Style, blend_s: float) -> float:
    """Seconds from the start of an action until it can be seen, which is when its label begins."""
    return float(style.fall_s * _FALL_SEEN ** (1 / _FALL_POWER)) if action == "fall" else blend_s / 2


def pose_at(action: Action, style: Style, since_s: float) -> Vector:
    """The pose vector `since_s` seconds after the start of an action."""
    return _POSES[action](style, since_s)


def joints_of(pose: Vector) -> Vector:
    """Joint positions of a pose.

    Returns:
        `(16, 3)` float64 in the order of `JOINTS`, body frame (forward, up, left) in body heights; the lower foot
        stands on 0 unless the pose is in the air.
    """
    lean, sway, air = (float(pose[index]) for index in (_LEAN, _SWAY, _AIR))
    up = np.array((math.sin(lean) * math.cos(sway), math.cos(lean) * math.cos(sway), math.sin(sway)))
    neck = up * _TORSO
    head = neck + _HEAD * np.array((math.sin(0.6 * lean), math.cos(0.6 * lean), math.sin(0.5 * sway)))
    left, right = pose[_LEFT:_RIGHT], pose[_RIGHT:]
    joints = np.array(
        [head, neck, *_arm(neck, up, left, 1), *_arm(neck, up, right, -1), *_leg(left, 1), *_leg(right, -1)]
    )
    ankles = joints[[10, 14], 1]
    joints[:, 1] += air + _ANKLE_HEIGHT - ankles.min()
    return joints


def tip_over(joints: Vector, progress: float, style: Style) -> Vector:
    """Turn a body about its feet in the picture plane, as far as its fall has come.

    Args:
        joints: `(16, 3)` in picture axes: right, up, away from the viewer; body heights.
        progress: 0 upright, 1 lying.
        style: Says to which side and how much along the line of sight.
    """
    angle = progress * math.radians(86)
    sine, cosine = math.sin(angle), math.cos(angle)
    tipped = joints.copy()
    tipped[:, 0] = joints[:, 0] * cosine + style.fall_side * joints[:, 1] * sine
    tipped[:, 1] = joints[:, 1] * cosine - style.fall_side * joints[:, 0] * sine
    tipped[:, 2] += joints[:, 1] * sine * style.fall_depth
    tipped[:, 1] += _ANKLE_HEIGHT + 0.03 * progress - tipped[:, 1].min()
    return tipped


def _direction(flex: float, spread: float, side: int) -> Vector:
    """Unit vector of a limb that hangs down at 0, swings forward by `flex` and outward by `spread`."""
    return np.array((math.sin(flex) * math.cos(spread), -math.cos(flex) * math.cos(spread), side * math.sin(spread)))


def _arm(neck: Vector, up: Vector, angles: Vector, side: int) -> tuple[Vector, Vector, Vector]:
    shoulder = neck - 0.02 * up + np.array((0.0, 0.0, side * _SHOULDER_HALF))
    flex, raised = float(angles[_ARM]), float(angles[_RAISE])
    elbow = shoulder + _UPPER_ARM * _direction(flex, raised, side)
    hand = elbow + _FOREARM_LENGTH * _direction(flex + float(angles[_ELBOW]), raised + float(angles[_FOREARM]), side)
    return shoulder, elbow, hand


def _leg(angles: Vector, side: int) -> tuple[Vector, Vector, Vector, Vector]:
    hip = np.array((0.0, 0.0, side * _HIP_HALF))
    flex, spread, bend = float(angles[_HIP]), float(angles[_SPREAD]), float(angles[_KNEE])
    knee = hip + _THIGH * _direction(flex, spread, side)
    ankle = knee + _SHIN * _direction(flex - bend, spread, side)
    toe = ankle + _FOOT * _direction(flex - bend + math.radians(78), 0.0, side)
    return hip, knee, ankle, toe


def _rest(style: Style) -> Vector:
    pose = np.zeros(_POSE_SIZE)
    for side in (_LEFT, _RIGHT):
        pose[side + _SPREAD] = 0.05
        pose[side + _RAISE] = style.arms_out
        pose[side + _ELBOW] = 0.15
    return pose


def _stand(style: Style, since_s: float) -> Vector:
    pose = _rest(style)
    swing = math.sin(2 * math.pi * (since_s / style.period_s + style.phase))
    pose[_SWAY] = 0.02 * swing
    pose[_LEFT + _ARM] = 0.05 * swing
    pose[_RIGHT + _ARM] = -0.04 * swing
    pose[_LEFT + _KNEE] = pose[_RIGHT + _KNEE] = 0.05
    pose[_LEFT + _HIP] = pose[_RIGHT + _HIP] = 0.025
    return pose


def _gait(style: Style, since_s: float, swing: float, knee: float, arm: float) -> Vector:
    pose = _rest(style)
    angle = 2 * math.pi * (since_s / style.period_s + style.phase)
    for side, turn in ((_LEFT, 0.0), (_RIGHT, math.pi)):
        forward = math.sin(angle + turn)
        # The knee bends most while the leg swings forward, a quarter of a cycle before it is in front.
        lifted = max(0.0, math.cos(angle + turn - 0.35))
        pose[side + _HIP] = style.amplitude * swing * (forward + 0.2)
        pose[side + _KNEE] = 0.12 + knee * lifted
        pose[side + _ARM] = -style.amplitude * arm * forward
    return pose


def _walk(style: Style, since_s: float) -> Vector:
    pose = _gait(style, since_s, swing=0.44, knee=0.75, arm=0.42)
    pose[_LEAN] = 0.04
    pose[_LEFT + _ELBOW] = pose[_RIGHT + _ELBOW] = 0.25
    return pose


def _run(style: Style, since_s: float) -> Vector:
    pose = _gait(style, since_s, swing=0.82, knee=1.75, arm=0.85)
    pose[_LEAN] = 0.22
    pose[_AIR] = 0.055 * abs(math.sin(2 * math.pi * (since_s / style.period_s + style.phase)))
    pose[_LEFT + _ELBOW] = pose[_RIGHT + _ELBOW] = 1.6
    return pose


def _wave(style: Style, since_s: float) -> Vector:
    pose = _stand(style, since_s)
    swing = math.sin(2 * math.pi * (since_s / style.period_s + style.phase))
    sides = (_LEFT, _RIGHT) if style.both_hands else ((_LEFT,) if style.left_handed else (_RIGHT,))
    for side in sides:
        pose[side + _ARM] = 0.1
        pose[side + _RAISE] = 1.75 + 0.1 * swing
        pose[side + _ELBOW] = 0.0
        pose[side + _FOREARM] = 1.0 + 0.62 * style.amplitude * swing
    return pose


def _jump(style: Style, since_s: float) -> Vector:
    pose = _rest(style)
    cycle = (since_s / style.period_s) % 1.0
    takeoff, landing = 0.3, 0.84
    flight = (cycle - takeoff) / (landing - takeoff)
    airborne = 0 < flight < 1
    height = 4 * flight * (1 - flight) if airborne else 0.0
    crouch = math.sin(math.pi * cycle / takeoff) if cycle <= takeoff else 0.0
    crouch = max(crouch, 0.55 * math.sin(math.pi * (cycle - landing) / (1 - landing)) if cycle >= landing else 0.0)
    bend = 1.0 * crouch + 0.5 * height
    pose[_AIR] = 0.21 * style.amplitude * height
    pose[_LEAN] = 0.4 * crouch
    for side in (_LEFT, _RIGHT):
        pose[side + _HIP] = 0.9 * bend
        pose[side + _KNEE] = 1.7 * bend
        pose[side + _SPREAD] = 0.05 + 0.12 * height
        pose[side + _ARM] = -0.8 * crouch + 0.9 * height
        pose[side + _RAISE] = style.arms_out + 0.95 * height
        pose[side + _ELBOW] = 0.3
    return pose


def _fall(style: Style, since_s: float) -> Vector:
    pose = _rest(style)
    progress = fall_progress(style, since_s)
    buckle = math.sin(math.pi * min(1.0, progress))
    pose[_LEAN] = 0.15 * progress
    pose[_LEFT + _HIP], pose[_RIGHT + _HIP] = 0.55 * buckle + 0.25 * progress, 0.4 * buckle
    pose[_LEFT + _KNEE], pose[_RIGHT + _KNEE] = 1.0 * buckle + 0.5 * progress, 0.8 * buckle + 0.1
    pose[_LEFT + _RAISE] = style.arms_out + 1.0 * buckle + 0.5 * progress
    pose[_RIGHT + _RAISE] = style.arms_out + 0.9 * buckle + 0.2 * progress
    pose[_LEFT + _ARM], pose[_RIGHT + _ARM] = 0.6 * progress, 0.3 * progress
    pose[_LEFT + _SPREAD] = 0.05 + 0.15 * progress
    return pose


_POSES: Mapping[Action, Callable[[Style, float], Vector]] = {
    "stand": _stand,
    "walk": _walk,
    "run": _run,
    "wave": _wave,
    "jump": _jump,
    "fall": _fall,
}
