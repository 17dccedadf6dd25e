"""The records of a run that may last for days: all are counted, only the last are kept."""

from __future__ import annotations

from collections import Counter

from pipeline_ver2.results import KeyframeRecord, Records, SlotRecord, SlotState


class RecentRecords(Records):
    """Keeps the last `most` slots, and their keyframes."""

    def __init__(self, most: int, slot_frames: int) -> None:
        super().__init__()
        self._most_slots, self._most_keyframes = most, most * slot_frames
        self._states: Counter[SlotState] = Counter()
        self._keyframes_seen = 0

    def add(self, record: KeyframeRecord | SlotRecord) -> None:
        """Count a record and keep it; the oldest kept gives way."""
        super().add(record)
        if isinstance(record, SlotRecord):
            self._states[record.state] += 1
            if len(self.slots) > self._most_slots:
                del self.slots[next(iter(self.slots))]
        else:
            self._keyframes_seen += 1
            if len(self.keyframes) > self._most_keyframes:
                del self.keyframes[next(iter(self.keyframes))]

    def states(self) -> Counter[SlotState]:
        """How many slots there were of each state."""
        return self._states.copy()

    @property
    def keyframes_seen(self) -> int:
        """How many keyframes there were."""
        return self._keyframes_seen
