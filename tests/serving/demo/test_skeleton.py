"""Poses and joints of the drawn people."""

from __future__ import annotations

import math

import numpy as np
import pytest

from serving.demo.skeleton import JOINTS, LABELS, Action, fall_progress, joints_of, pose_at, sample_style, tip_over

HEAD, ANKLES = JOINTS.index("head"), [JOINTS.index("left_ankle"), JOINTS.index("right_ankle")]


@pytest.mark.parametrize("action", LABELS)
def test_bones_keep_their_length(action: Action) -> None:
    """Whatever somebody does, thigh and upper arm stay as long as they are."""
    style = sample_style(np.random.default_rng(1), action)
    bones = [("left_hip", "left_knee"), ("right_shoulder", "right_elbow")]
    lengths = [
        [float(np.linalg.norm(joints[JOINTS.index(start)] - joints[JOINTS.index(end)])) for start, end in bones]
        for joints in (joints_of(pose_at(action, style, since_s)) for since_s in np.linspace(0, 2, 9).tolist())
    ]
    np.testing.assert_allclose(lengths, np.broadcast_to(lengths[0], (9, 2)), atol=1e-9)


def test_only_jumps_and_runs_leave_the_ground() -> None:
    """A jump lifts both feet well off the ground and comes back, a walk keeps one foot on it."""
    rng = np.random.default_rng(2)
    lowest = {
        action: [
            float(joints_of(pose_at(action, style, since_s))[ANKLES, 1].min())
            for since_s in np.linspace(0, 1, 41).tolist()
        ]
        for action in LABELS
        for style in [sample_style(rng, action)]
    }
    ground = lowest["stand"][0]
    assert max(lowest["jump"]) > ground + 0.12
    assert min(lowest["jump"]) == pytest.approx(ground)
    assert max(lowest["walk"]) == pytest.approx(ground)


def test_wave_lifts_a_hand_over_the_shoulder_and_swings_it() -> None:
    """A waving hand stays high and moves from side to side."""
    style = sample_style(np.random.default_rng(3), "wave")
    side = "left" if style.left_handed else "right"
    hand, shoulder = JOINTS.index(f"{side}_hand"), JOINTS.index(f"{side}_shoulder")
    poses = np.array([joints_of(pose_at("wave", style, since_s)) for since_s in np.linspace(0, 1, 31).tolist()])
    assert (poses[:, hand, 1] > poses[:, shoulder, 1]).all()
    assert np.ptp(poses[:, hand, 2]) > 0.08


def test_fall_ends_lying() -> None:
    """A fall begins upright, ends with the head near the ground on its side, and stays there."""
    style = sample_style(np.random.default_rng(4), "fall", side=-1)
    heights, sides = [], []
    for since_s in (0.0, style.fall_s, style.fall_s + 5):
        joints = tip_over(joints_of(pose_at("fall", style, since_s)), fall_progress(style, since_s), style)
        heights.append(float(joints[HEAD, 1]))
        sides.append(float(joints[HEAD, 0]))
    assert heights[0] > 0.85
    assert heights[1] < 0.3
    assert heights[1] == heights[2]
    assert sides[1] < -0.6


@pytest.mark.parametrize(("since_s", "progress"), [(-1.0, 0.0), (0.0, 0.0), (math.inf, 1.0)])
def test_fall_progress_is_bounded(since_s: float, progress: float) -> None:
    """Before its start a fall has not begun, and it never goes on past lying."""
    assert fall_progress(sample_style(np.random.default_rng(5), "fall"), since_s) == progress
