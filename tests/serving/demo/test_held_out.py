"""Held-out clips and slots."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipeline_ver2.config import PipelineConfig
from serving.demo import compare_engines, held_out, seeds
from serving.demo.answerer_slots import KEYFRAME_INTERVAL, Take, sample_take
from serving.demo.held_out import SEED_SETS, HeldOutSlot, draw_clip, draw_slot, empty_scene
from serving.demo.world import VISIBLE

SETTINGS = PipelineConfig()
MOST_ASKED = 10_000


def slot(number: int, label: str = "A") -> HeldOutSlot:
    """A slot with a small detector's clips."""
    return draw_slot(SEED_SETS[label], number, SETTINGS, 4, (24, 32))


def take_of(wanted: int, *, source_fps: float | None = None) -> Take:
    """A take with so many different pictures, not at the start of its source."""
    takes = (sample_take(seeds.generator(seeds.TRAIN, number), 16 / 9, two_share=0.3) for number in range(300))
    return next(
        take for take in takes
        if len(set(take.numbers)) == wanted and take.numbers[0] > 16 and source_fps in {None, take.source_fps}
    )  # fmt: skip


def test_a_slot_has_a_clip_for_each_different_picture() -> None:
    """Clips have the detector's length and size; each picture has one; findings and labels fit the pictures."""
    drawn = [slot(number) for number in range(6)]
    for one in drawn:
        assert one.clips.shape[1:] == (4, 24, 32, 3)
        assert set(one.clip_of) == set(range(len(one.clips)))
        assert len(one.clip_of) == len(one.question.images) == len(one.question.findings) == 3
        assert one.size[0] > one.size[1]
    assert any(one.truth.action != drawn[0].truth.action for one in drawn)


def test_slots_repeat_and_differ_between_the_sets() -> None:
    """The same seed gives the same slot, the other set another one."""
    first, again, other = slot(3), slot(3), slot(3, "B")
    assert np.array_equal(first.clips, again.clips)
    assert first.question == again.question
    assert first.question.images[0].jpeg != other.question.images[0].jpeg


def test_the_detector_sees_the_sixteen_frames_before_each_picture() -> None:
    """Grid frames are 11 apart, so the second clip begins with the frame 5 places before the first clip's end."""
    take = take_of(3, source_fps=30)
    clips = held_out._clips(take, list(take.numbers), (36, 64), 16, (32, 32))
    assert list(clips.shape) == [3, 16, 32, 32, 3]
    assert np.array_equal(clips[0][KEYFRAME_INTERVAL:], clips[1][: 16 - KEYFRAME_INTERVAL])
    assert not np.array_equal(clips[0][-1], clips[0][0])


def test_before_the_start_the_first_frame_repeats() -> None:
    """A picture that is the source's second frame has a clip of the first one but for its end."""
    take = take_of(3, source_fps=30)
    (clip,) = held_out._clips(take, [1], (36, 64), 16, (32, 32))
    assert all(np.array_equal(frame, clip[0]) for frame in clip[:15])


def test_a_repeated_picture_is_looked_at_once() -> None:
    """A slot filled up with its last picture has no clip twice."""
    repeated = next(one for number in range(200) if len((one := slot(number)).clips) < 3)
    assert repeated.clip_of[-1] == repeated.clip_of[-2] == len(repeated.clips) - 1
    assert repeated.question.images[-1].repeated


def test_clips_show_the_well_visible_people_of_their_last_frame() -> None:
    """Some clips have people; all of those are well visible."""
    drawn = [draw_clip(SEED_SETS["A"], number, 15.0) for number in range(3)]
    assert {clip.frames.shape for clip in drawn} == {(16, 224, 224, 3)}
    assert any(clip.persons for clip in drawn)
    assert all(person.visible > VISIBLE for clip in drawn for person in clip.persons)


@pytest.mark.parametrize("label", ["A", "B"])
def test_an_empty_scene_stays_empty(label: str) -> None:
    """Nobody is in it at any time."""
    assert empty_scene(SEED_SETS[label]).actors == ()


def test_seeds_of_one_use_are_not_those_of_another() -> None:
    """Clips, slots, the empty scene and the slots for both engines lie apart, and in the set."""
    first = [0, held_out._FIRST_SLOT, held_out._FIRST_EMPTY, compare_engines._FIRST_SLOT]
    assert all(last - before >= 5_000 for before, last in itertools.pairwise(first))
    assert held_out._FIRST_SLOT >= MOST_ASKED <= held_out._FIRST_EMPTY - held_out._FIRST_SLOT
    assert all(len(seed_set) > compare_engines._FIRST_SLOT + 1_000 for seed_set in SEED_SETS.values())
