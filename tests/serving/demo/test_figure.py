"""Drawn people and their boxes."""

from __future__ import annotations

import numpy as np
import pytest

from serving.demo.figure import draw_figure, draw_shadow, extent, sample_look
from serving.demo.skeleton import LABELS, Action, joints_of, pose_at, sample_style

HEIGHT, WIDTH = 200, 240
BODY_PX = 120.0


@pytest.mark.parametrize("action", LABELS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_box_is_what_is_drawn(action: Action, seed: int) -> None:
    """The analytical box encloses the pixels that were drawn, and not much more."""
    rng = np.random.default_rng(seed)
    look, style = sample_look(rng), sample_style(rng, action)
    body = joints_of(pose_at(action, style, float(rng.uniform(0, 1))))
    joints = np.stack((120 + body[:, 2] * BODY_PX, 180 - body[:, 1] * BODY_PX, body[:, 0]), axis=1)
    frame = np.full((HEIGHT, WIDTH, 3), 7, np.uint8)
    draw_figure(frame, joints, BODY_PX, look, facing=0.0)
    rows, columns = np.nonzero((frame != 7).any(axis=2))
    drawn = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    np.testing.assert_allclose(extent(joints, BODY_PX, look), drawn, atol=0.04 * BODY_PX)
    x1, y1, x2, y2 = extent(joints, BODY_PX, look)
    # Smooth edges reach about two pixels beyond a shape.
    assert x1 - 3 <= drawn[0]
    assert y1 - 3 <= drawn[1]
    assert drawn[2] <= x2 + 3
    assert drawn[3] <= y2 + 3


@pytest.mark.parametrize("centre", [(-500.0, 50.0), (120.0, 900.0)])
def test_shadow_outside_the_picture_changes_nothing(centre: tuple[float, float]) -> None:
    """A shadow that lies outside is simply not seen."""
    frame = np.full((HEIGHT, WIDTH, 3), 200, np.uint8)
    draw_shadow(frame, centre, (30.0, 5.0))
    assert (frame == 200).all()


def test_shadow_at_the_edge_darkens_what_is_inside() -> None:
    """A shadow that is cut by the edge darkens its visible part only."""
    frame = np.full((HEIGHT, WIDTH, 3), 200, np.uint8)
    draw_shadow(frame, (0.0, 100.0), (30.0, 5.0))
    assert (frame[100, :25] < 150).all()
    assert (frame[:, 40:] == 200).all()
