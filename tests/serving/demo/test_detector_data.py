"""Clips for the detector."""

from __future__ import annotations

import numpy as np
import pytest

from serving.demo import seeds
from serving.demo.detector_data import ClipSample, sample_clip, training_view
from serving.demo.skeleton import LABELS
from serving.demo.world import VISIBLE


def clip_of(index: int, **wanted: float | int) -> ClipSample:
    """A clip of the training seeds."""
    return sample_clip(seeds.generator(seeds.TRAIN, index), **wanted)  # type: ignore[arg-type]


def test_clip_is_repeatable() -> None:
    """A seed gives the same clip again."""
    first, again = clip_of(1), clip_of(1)
    assert first.frames.shape == (16, 224, 224, 3)
    assert first.frames.dtype == np.uint8
    np.testing.assert_array_equal(first.frames, again.frames)
    assert [person.box for person in first.persons] == [person.box for person in again.persons]


@pytest.mark.parametrize(("rate", "distinct"), [(10.0, {6}), (15.0, {8, 9}), (30.0, {16}), (60.0, {16})])
def test_slow_video_repeats_frames(rate: float, distinct: set[int]) -> None:
    """Clips show a slow source as the grid does: 15 fps has about eight frames, each twice."""
    clip = next(clip for clip in (clip_of(index, source_fps=rate, height=120) for index in range(30)) if clip.persons)
    assert len({frame.tobytes() for frame in clip.frames}) in distinct


def test_falls_can_be_asked_for() -> None:
    """Scenes can be drawn in which somebody falls or lies; without asking they are the minority."""
    asked, usual = (
        [
            any(person.action == "fall" for person in clip_of(index, height=60, falling=falling).persons)
            for index in range(12)
        ]
        for falling in (True, False)
    )
    assert sum(asked) >= 8
    assert sum(usual) < 6


def test_only_well_visible_people_count() -> None:
    """Nobody who is mostly hidden or outside has to be found, and some frames are empty."""
    clips = [clip_of(index, height=60) for index in range(40)]
    assert all(person.visible > VISIBLE for clip in clips for person in clip.persons)
    assert {len(clip.persons) for clip in clips} == {0, 1, 2}


def test_training_view() -> None:
    """The view holds the key frame, the halved clip and the people in pixels; halving averages pixels."""
    clip = next(clip for clip in (clip_of(index, height=120) for index in range(20)) if len(clip.persons) == 2)
    view = training_view(clip)
    np.testing.assert_array_equal(view.picture, clip.frames[-1])
    mean = clip.frames.reshape(16, 112, 2, 112, 2, 3).astype(float).mean(axis=(2, 4))
    assert np.abs(view.halved - mean).max() <= 0.5
    np.testing.assert_allclose(view.boxes, np.array([person.box for person in clip.persons]) * 224, rtol=1e-6)
    assert [LABELS[index] for index in view.actions] == [person.action for person in clip.persons]


def test_mirroring_twice_changes_nothing() -> None:
    """A mirrored view has its boxes where its people are, so that mirroring again gives the view back."""
    view = training_view(next(clip for clip in (clip_of(index, height=120) for index in range(20)) if clip.persons))
    mirrored = view.mirrored()
    np.testing.assert_array_equal(mirrored.picture[:, 0], view.picture[:, -1])
    np.testing.assert_allclose(mirrored.boxes[:, 0], 224 - view.boxes[:, 2], atol=1e-4)
    assert (mirrored.boxes[:, 0] < mirrored.boxes[:, 2]).all()
    np.testing.assert_allclose(mirrored.mirrored().boxes, view.boxes, atol=1e-4)
    np.testing.assert_array_equal(mirrored.mirrored().halved, view.halved)


def test_views_without_people_keep_their_shape() -> None:
    """An empty picture has zero boxes, mirrored too."""
    empty = next(clip for clip in (clip_of(index, height=60) for index in range(60)) if not clip.persons)
    view = training_view(empty)
    for one in (view, view.mirrored(), view.recoloured()):
        assert one.boxes.shape == (0, 4)
        assert one.actions.shape == (0,)
