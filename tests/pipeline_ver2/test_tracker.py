"""Slots: when they are ready, and their records."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_ver2.errors import DeadlineShed, EngineFailed, QueueFull, RequestError, StageError
from pipeline_ver2.results import KeyframeRecord
from pipeline_ver2.tracker import ReadySlot, SlotTracker
from pipeline_ver2.wire import Detection, LabelScore

SOMEBODY = Detection(box=(0, 0, 1, 1), labels=(LabelScore(name="walk", score=0.5),))


def keyframe(number: int, *, failed: bool = False, found: bool = True) -> KeyframeRecord:
    """The record of the keyframe with this number."""
    return KeyframeRecord(
        key_index=number,
        time_s=number / 30,
        state="failed" if failed else "ok",
        detections=(SOMEBODY,) if found and not failed else (),
    )


def slots_of(expected: list[int], settled: list[int], slot_frames: int) -> list[ReadySlot]:
    """Expect all keyframes, settle them in this order, close in between."""
    tracker = SlotTracker(slot_frames)
    for number in expected:
        tracker.expect(number, b"%d" % number)
    half = len(settled) // 2
    ready = [tracker.settle(keyframe(number)) for number in settled[:half]]
    ready.append(tracker.close())
    ready += [tracker.settle(keyframe(number)) for number in settled[half:]]
    return [slot for slot in ready if slot is not None]


def test_nothing_expected_makes_no_slot() -> None:
    """An empty video closes without a slot."""
    assert SlotTracker(3).close() is None


def test_one_keyframe_fills_a_slot_by_repeating() -> None:
    """The only keyframe is shown three times; the repeats are marked."""
    (slot,) = slots_of([7], [7], 3)

    assert slot.key_indices == (7, 7, 7)
    assert [image.repeated for image in slot.images] == [False, True, True]
    assert {image.jpeg for image in slot.images} == {b"7"}


@pytest.mark.fault("A6")
@pytest.mark.fault("B3")
@given(st.permutations(range(1, 9)), st.integers(1, 5))
def test_any_order_of_results_makes_the_same_slots(order: list[int], slot_frames: int) -> None:
    """Each keyframe stands in one slot, in time order, with its own picture, whatever order results come in."""
    slots = sorted(slots_of(sorted(order), order, slot_frames), key=lambda slot: slot.index)

    shown = list(itertools.chain.from_iterable(slot.key_indices for slot in slots))
    assert [slot.index for slot in slots] == list(range(-(-8 // slot_frames)))
    assert shown[:8] == list(range(1, 9))
    assert set(shown[8:]) <= {8}
    for slot in slots:
        assert [image.jpeg for image in slot.images] == [b"%d" % number for number in slot.key_indices]
        assert [image.time_s for image in slot.images] == [number / 30 for number in slot.key_indices]


def test_the_documented_workload_makes_13_slots() -> None:
    """38 keyframes in threes; the last slot repeats keyframe 418."""
    keys = list(range(11, 419, 11))
    slots = slots_of(keys, keys, 3)

    assert len(slots) == 13
    assert slots[0].key_indices == (11, 22, 33)
    assert slots[-1].key_indices == (407, 418, 418)


def test_a_slot_is_ready_with_its_last_result_only() -> None:
    """Two of three results make nothing ready, the third does, once."""
    tracker = SlotTracker(3)
    for number in (1, 2, 3):
        tracker.expect(number, b"")
    assert tracker.settle(keyframe(1)) is None
    assert tracker.settle(keyframe(3)) is None
    slot = tracker.settle(keyframe(2))

    assert slot is not None
    assert tracker.close() is None


def test_a_failed_keyframe_fails_its_slot_unasked() -> None:
    """A slot with a failed keyframe is failed: stage1_failed, whatever the gate."""
    tracker = SlotTracker(2)
    tracker.expect(1, b"")
    tracker.expect(2, b"")
    tracker.settle(keyframe(1))
    slot = tracker.settle(keyframe(2, failed=True))

    assert slot is not None
    record = slot.unasked("all")
    assert record is not None
    assert (record.state, record.reason, record.attempts) == ("failed", "stage1_failed", 0)


@pytest.mark.parametrize(
    ("error", "state", "attempts"),
    [
        (DeadlineShed("late"), "shed", 0),
        (QueueFull("full"), "failed", 0),
        (RequestError("refused"), "failed", 1),
        (EngineFailed("died"), "failed", 1),
    ],
)
def test_a_refusal_is_recorded_with_its_code(error: StageError | RequestError, state: str, attempts: int) -> None:
    """The record names the error's code; work never taken up counts no send."""
    (slot,) = slots_of([1], [1], 1)
    record = slot.refused(error)

    assert (record.state, record.attempts) == (state, attempts)
    assert record.reason == f"{error.code}: {error}"


def test_a_gap_fills_up_the_slot_before_it() -> None:
    """The next keyframe begins a new slot, also while the one before still waits for Stage 1."""
    tracker = SlotTracker(3)
    for number in (11, 22):
        tracker.expect(number, b"%d" % number, number / 10)
    assert tracker.settle(keyframe(11)) is None
    assert tracker.close() is None
    for number in (55, 66, 77):
        tracker.expect(number, b"%d" % number, number / 10)
    assert tracker.close() is None
    cut = tracker.settle(keyframe(22))
    assert cut is not None
    assert (cut.index, cut.key_indices, cut.arrived_s) == (0, (11, 22, 22), 2.2)
    last = [tracker.settle(keyframe(number)) for number in (55, 66, 77)][-1]
    assert last is not None
    assert (last.index, last.key_indices, last.arrived_s) == (1, (55, 66, 77), 7.7)
    assert tracker.slots == 2


def test_a_slot_that_stage_1_had_no_time_for_is_shed() -> None:
    """One whose keyframes failed for other reasons, too, has failed."""
    late = keyframe(11, failed=True).model_copy(update={"reason": "shed_deadline: planted"})
    for second, state in ((keyframe(22), "shed"), (late, "shed"), (keyframe(22, failed=True), "failed")):
        record = ReadySlot(0, (), (late, second)).unasked("all")
        assert record is not None
        assert record.state == state
