"""Scenes: repeatable, true to their boxes, continuous in time, and sampled as the product's grid samples video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import floor

import numpy as np
import pytest

from serving.demo import seeds
from serving.demo.scene import Camera, Scene
from serving.demo.world import (
    ASPECTS,
    LABELS,
    Action,
    Person,
    grid_times,
    most_notable,
    sample_scene,
    sample_source_fps,
    slot_action,
)

SIZE = (180, 320)


def scene_of(index: int, persons: int | None = None) -> Scene:
    """A scene of the training seeds."""
    return sample_scene(seeds.generator(seeds.TRAIN, index), persons=persons)


def test_same_seed_same_bytes() -> None:
    """A seed stands for one scene: pictures and truth come out the same again."""
    for index in range(5):
        first, again = scene_of(index), scene_of(index)
        for time_s in (0.0, first.focus_s):
            (rgb, persons), (rgb_again, persons_again) = first.render(time_s, SIZE), again.render(time_s, SIZE)
            assert rgb.shape == (*SIZE, 3)
            assert rgb.dtype == np.uint8
            np.testing.assert_array_equal(rgb, rgb_again)
            assert [(one.box, one.action, one.visible) for one in persons] == [
                (one.box, one.action, one.visible) for one in persons_again
            ]


def test_order_of_rendering_does_not_matter() -> None:
    """A picture depends on its time only, not on what was drawn before."""
    scene = scene_of(3)
    before = scene.render(1.2, SIZE)[0]
    scene.render(0.4, SIZE)
    np.testing.assert_array_equal(before, scene.render(1.2, SIZE)[0])


def test_another_seed_is_another_scene() -> None:
    """Two seeds do not draw the same picture."""
    assert (scene_of(0).render(1.0, SIZE)[0] != scene_of(1).render(1.0, SIZE)[0]).any()


def test_boxes_lie_in_the_picture() -> None:
    """Boxes are clipped to 0..1, are not empty, and the visible share is one."""
    for index in range(60):
        scene = scene_of(index, persons=2)
        for time_s in (0.3, 1.5, 2.2):
            for person in scene.persons_at(time_s, SIZE):
                x1, y1, x2, y2 = person.box
                assert 0 <= x1 < x2 <= 1
                assert 0 <= y1 < y2 <= 1
                assert 0 <= person.visible <= 1 + 1e-9
                assert person.joints.shape == (16, 2)
                assert person.action in LABELS


def test_boxes_lie_on_the_drawn_people() -> None:
    """What differs from the empty place lies in the box, but for the shadow on the ground, and fills it."""
    checked = 0
    for index in range(40):
        scene = replace(scene_of(index, persons=1), camera=Camera())
        empty = replace(scene, actors=())
        rgb, persons = scene.render(scene.focus_s, SIZE)
        if persons[0].visible < 0.999 or persons[0].action in ("jump", "fall"):
            continue
        changed = (rgb != empty.render(scene.focus_s, SIZE)[0]).any(axis=2)
        x1, y1, x2, y2 = (side * length for side, length in zip(persons[0].box, (320, 180, 320, 180), strict=True))
        body = changed[: int(y2 - 0.15 * (y2 - y1))]
        rows, columns = np.nonzero(body)
        assert rows.min() == pytest.approx(y1, abs=3)
        assert x1 - 3 <= columns.min()
        assert columns.max() <= x2 + 3
        checked += 1
    assert checked > 5


def test_nobody_is_a_scene_too() -> None:
    """A scene without people has no truth to tell."""
    assert scene_of(5, persons=0).render(1.0, SIZE)[1] == []


def test_nearer_people_hide_others() -> None:
    """Somebody right behind somebody else is not visible, the one in front is."""
    scene = scene_of(11, persons=1)
    actor = replace(scene.actors[0], x=0.9, height=0.5, ground=0.9)
    behind = replace(actor, ground=0.88)
    hidden = replace(scene, actors=(actor, behind)).persons_at(scene.focus_s, SIZE)
    assert [person.actor for person in hidden] == [0, 1]
    assert hidden[0].visible == pytest.approx(1, abs=0.3)
    assert hidden[1].visible < 0.2


def test_movement_is_continuous() -> None:
    """Nobody jumps across the picture from one frame to the next, through changes of action as well."""
    for index in range(40):
        scene = scene_of(index, persons=1)
        times = np.arange(0.2, 2.6, 1 / 60).tolist()
        joints = [found[0].joints for found in (scene.persons_at(time_s, SIZE) for time_s in times) if found]
        steps = [float(np.abs(after - before).max()) for before, after in pairwise(joints)]
        assert max(steps, default=0) < 0.12


def test_actions_are_sampled_evenly() -> None:
    """Each action is what somebody does in a fair share of scenes."""
    actions = [
        person.action
        for index in range(400)
        for scene in [scene_of(index)]
        for person in scene.persons_at(scene.focus_s, SIZE)
    ]
    for label in LABELS:
        assert 0.08 < actions.count(label) / len(actions) < 0.3


def exact_grid(frame: int, source_fps: Fraction) -> Fraction:
    """Time of the last source frame that is not later than (frame + 1/2) / 30."""
    return floor((frame + Fraction(1, 2)) * source_fps / 30) / source_fps


@pytest.mark.parametrize("rate", [10, 12, 15, 20, 24, 25, 30, 48, 50, 59, 60])
def test_grid_times_are_those_of_the_product(rate: int) -> None:
    """The grid shows the last source frame up to the middle of the grid frame, in exact arithmetic."""
    expected = [float(exact_grid(frame, Fraction(rate))) for frame in range(200)]
    np.testing.assert_allclose(grid_times(range(200), rate, 0.0), expected, atol=1e-9)


@pytest.mark.parametrize(("rate", "distinct"), [(10, 4), (15, 6), (30, 12), (60, 12)])
def test_slow_sources_repeat_frames(rate: float, distinct: int) -> None:
    """15 fps shows each frame twice, 10 fps three times, 60 fps leaves every other one out."""
    times = grid_times(range(12), rate, 5.0)
    assert len(set(times.tolist())) == distinct
    assert times[0] >= 5.0


def test_source_rates_are_between_10_and_60() -> None:
    """Sampled frame rates cover 10 to 60, and 30 is the most frequent."""
    rng = np.random.default_rng(0)
    rates = [sample_source_fps(rng) for _ in range(500)]
    assert min(rates) >= 10
    assert max(rates) <= 60
    assert 0.4 < rates.count(30.0) / 500 < 0.6
    assert rates.count(15.0) > 40


def person(action: Action, actor: int = 0, visible: float = 1.0) -> Person:
    """Somebody."""
    return Person(actor, action, (0.1, 0.1, 0.5, 0.5), visible, np.zeros((16, 2)))


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ([], None),
        ([[], [], []], None),
        ([[person("run")]], "run"),
        ([[person("run")], [], []], None),
        ([[person("walk")], [person("walk")], [person("fall")]], "walk"),
        ([[person("walk")], [person("fall")], [person("fall")]], "fall"),
        ([[person("walk")], [person("run")]], "run"),
        ([[person("stand"), person("wave", 1)], [person("stand"), person("wave", 1)]], "wave"),
        ([[person("stand")], [person("stand"), person("jump", 1)], [person("stand")]], "stand"),
        ([[person("stand"), person("fall", 1, 0.2)], [person("stand"), person("fall", 1, 0.2)]], "stand"),
    ],
)
def test_slot_action(images: Sequence[Sequence[Person]], expected: Action | None) -> None:
    """A slot's action is the most notable one of the people seen in two pictures, each by its majority."""
    assert slot_action(images) == expected


def test_most_notable() -> None:
    """Fall beats all, stand beats nothing, and of nothing there is no most notable."""
    assert most_notable(["stand", "fall", "jump"]) == "fall"
    assert most_notable(["stand", "walk"]) == "walk"
    assert most_notable([]) is None


def test_aspects_are_those_of_video() -> None:
    """Pictures are drawn wide and not so wide."""
    assert max(ASPECTS) == pytest.approx(16 / 9)
    for aspect in ASPECTS:
        scene = sample_scene(np.random.default_rng(0), aspect=aspect)
        assert scene.render(1.0, (120, round(120 * aspect)))[0].shape[:2] == (120, round(120 * aspect))
