"""The event simulation without overhead."""

from __future__ import annotations

import pytest

from serving.bench.ideal import Workload, finish_s


def test_the_documented_workload() -> None:
    """419 frames make 38 keyframes, 10 batches and 13 slots."""
    workload = Workload()
    assert (workload.keyframes, workload.batches, workload.slots) == (38, 10, 13)


@pytest.mark.parametrize(("limit", "ideal_s"), [(1, 28.65), (2, 16.23)])
def test_one_stage_after_the_other(limit: int, ideal_s: float) -> None:
    """Without overlap Stage 2 begins when the tenth batch is through."""
    assert finish_s(Workload(), limit=limit, overlap=False) == pytest.approx(ideal_s)


@pytest.mark.parametrize(("limit", "ideal_s"), [(1, 27.084), (2, 14.664), (3, 10.524), (4, 8.454)])
def test_both_stages_at_once(limit: int, ideal_s: float) -> None:
    """With overlap only the first batch is waited for; the figures are the documented ones."""
    assert finish_s(Workload(), limit=limit, overlap=True) == pytest.approx(ideal_s)


def test_more_permits_than_slots() -> None:
    """Then the last batch decides: its slot is asked about as soon as it is through."""
    assert finish_s(Workload(), limit=99, overlap=True) == pytest.approx(10 * 0.174 + 2.07)


def test_a_slow_first_stage_is_waited_for() -> None:
    """Permits stand idle while no slot is ready: three batches of one slot each, 5 s apart, 1 s of Stage 2."""
    workload = Workload(frames=9, keyframe_interval=1, batch_size=3, slot_frames=3, stage1_s=5, stage2_s=1)
    assert finish_s(workload, limit=2, overlap=True) == pytest.approx(16)


def test_a_slot_waits_for_its_last_keyframe() -> None:
    """Slots and batches do not end together: the first slot needs the second batch."""
    workload = Workload(frames=3, keyframe_interval=1, batch_size=2, slot_frames=3, stage1_s=1, stage2_s=10)
    assert finish_s(workload, limit=1, overlap=True) == pytest.approx(12)


def test_a_video_shorter_than_the_interval() -> None:
    """It has one keyframe, so one batch and one slot."""
    workload = Workload(frames=3)
    assert (workload.keyframes, workload.batches, workload.slots) == (1, 1, 1)
    assert finish_s(workload, limit=4, overlap=True) == pytest.approx(0.174 + 2.07)


def test_hurried_times_scale_the_ideal() -> None:
    """As much to do in a tenth of the time."""
    hurried = Workload().hurried(10)
    assert hurried.slots == 13
    assert finish_s(hurried, limit=2, overlap=True) == pytest.approx(1.4664)
