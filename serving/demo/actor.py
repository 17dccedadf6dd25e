"""An actor is a person with a script; at any time it has a pose, a place and a label."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np

from serving.demo.figure import Look
from serving.demo.skeleton import (
    Action,
    Style,
    Vector,
    fall_progress,
    joints_of,
    label_delay_s,
    pose_at,
    tip_over,
)

_BLEND_S = 0.2


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of a script: `yaw` is where the actor faces (0 to the viewer, pi/2 to the right), in radians;
    `speed` is along that direction, in body heights a second."""

    start_s: float
    action: Action
    style: Style
    yaw: float
    speed: float


@dataclass(frozen=True, slots=True)
class Actor:
    """One person: look, script, and where it is at `anchor_s`.

    `height`, `x` and `ground` (the feet) are in picture heights, from the left and the top edge.
    """

    look: Look
    height: float
    x: float
    ground: float
    anchor_s: float
    segments: tuple[Segment, ...]

    def index_at(self, time_s: float) -> int:
        """Index of the segment that runs at a time; the first one also before its start."""
        return max(0, bisect.bisect_right([segment.start_s for segment in self.segments], time_s) - 1)

    def action_at(self, time_s: float) -> Action:
        """The label at a time: an action counts from when it can be seen, not from when it begins."""
        index = self.index_at(time_s)
        segment = self.segments[index]
        delay_s = label_delay_s(segment.action, segment.style, _BLEND_S)
        if index > 0 and time_s < segment.start_s + delay_s:
            return self.segments[index - 1].action
        return segment.action

    def moved(self, time_s: float) -> tuple[float, float]:
        """Distance covered since `anchor_s`: to the right, and towards the viewer; in body heights."""
        low, high = sorted((self.anchor_s, time_s))
        right = nearer = 0.0
        for index, segment in enumerate(self.segments):
            start = segment.start_s if index else -math.inf
            stop = self.segments[index + 1].start_s if index + 1 < len(self.segments) else math.inf
            seconds = max(0.0, min(high, stop) - max(low, start))
            right += segment.speed * math.sin(segment.yaw) * seconds
            nearer += segment.speed * math.cos(segment.yaw) * seconds
        sign = 1 if time_s >= self.anchor_s else -1
        return sign * right, sign * nearer

    def body_at(self, time_s: float) -> tuple[Vector, float]:
        """The body at a time.

        Returns:
            `(joints, yaw)`: `(16, 3)` float64 in picture axes (right, up, away from the viewer), body heights, the
            ground below the pelvis at 0; and where it faces.
        """
        index = self.index_at(time_s)
        segment = self.segments[index]
        since_s = time_s - segment.start_s
        pose, yaw = pose_at(segment.action, segment.style, since_s), segment.yaw
        if index > 0 and since_s < _BLEND_S:
            before = self.segments[index - 1]
            share = since_s / _BLEND_S
            share = share * share * (3 - 2 * share)
            pose = (1 - share) * pose_at(before.action, before.style, time_s - before.start_s) + share * pose
            yaw = (1 - share) * before.yaw + share * yaw
        joints = _turned(joints_of(pose), yaw)
        if segment.action == "fall":
            joints = tip_over(joints, fall_progress(segment.style, since_s), segment.style)
        return joints, yaw


def _turned(joints: Vector, yaw: float) -> Vector:
    """From body axes (forward, up, left) to picture axes (right, up, away from the viewer)."""
    forward, left = joints[:, 0], joints[:, 2]
    sine, cosine = math.sin(yaw), math.cos(yaw)
    return np.stack((forward * sine + left * cosine, joints[:, 1], left * sine - forward * cosine), axis=1)
