"""Backgrounds."""

from __future__ import annotations

import cv2
import numpy as np

from serving.demo.scenery import draw_scenery


def test_same_place_at_every_size() -> None:
    """A seed is one place: drawn large and made small it looks as drawn small."""
    for seed in range(25):
        large = cv2.resize(draw_scenery(seed, (360, 640)), (160, 90), interpolation=cv2.INTER_AREA)
        small = draw_scenery(seed, (90, 160))
        assert np.abs(large.astype(float) - small).mean() < 10


def test_places_differ() -> None:
    """Seeds are different places, of several kinds."""
    means = {tuple(draw_scenery(seed, (36, 64)).mean(axis=(0, 1)).round(1)) for seed in range(20)}
    assert len(means) == 20
