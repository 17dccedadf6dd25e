"""The records of a run that may last for days."""

from __future__ import annotations

from pipeline_ver2.recent import RecentRecords
from pipeline_ver2.results import KeyframeRecord, SlotRecord, SlotState


def test_all_are_counted_and_the_last_are_kept() -> None:
    """Memory does not grow with the run, counts do."""
    records = RecentRecords(2, 3)
    states: list[SlotState] = ["ok", "shed", "ok", "failed", "ok"]
    for number, state in enumerate(states):
        for key in range(3):
            records.add(KeyframeRecord(key_index=3 * number + key, time_s=number, state="ok"))
        slot = SlotRecord(index=number, key_indices=(3 * number,), start_s=number, end_s=number, state=state)
        records.add(slot)
    assert list(records.slots) == [3, 4]
    assert list(records.keyframes) == [9, 10, 11, 12, 13, 14]
    assert records.states() == {"ok": 3, "shed": 1, "failed": 1}
    assert records.keyframes_seen == 15


def test_nothing_is_nothing() -> None:
    """A run that ended at once."""
    records = RecentRecords(2, 3)
    assert records.states() == {}
    assert records.keyframes_seen == 0
