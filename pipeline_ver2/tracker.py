"""Keeps count of which keyframes of which slot have a Stage 1 result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline_ver2.prompts import SlotImage
from pipeline_ver2.results import KeyframeRecord


@dataclass(frozen=True, slots=True)
class ReadySlot:
    """A slot whose keyframes all have a result; images and keyframes in time order, filled up at the end."""

    index: int
    images: tuple[SlotImage, ...]
    keyframes: tuple[KeyframeRecord, ...]

    @property
    def key_indices(self) -> tuple[int, ...]:
        """The keyframes' numbers, the last one repeated where the slot was filled up."""
        return tuple(record.key_index for record in self.keyframes)

    @property
    def has_failed(self) -> bool:
        """Whether Stage 1 failed on one of its keyframes."""
        return any(record.state == "failed" for record in self.keyframes)

    @property
    def has_findings(self) -> bool:
        """Whether Stage 1 found somebody."""
        return any(record.detections for record in self.keyframes)


@dataclass(slots=True)
class _Pending:
    key_indices: list[int] = field(default_factory=list)
    jpegs: list[bytes] = field(default_factory=list)
    results: dict[int, KeyframeRecord] = field(default_factory=dict)


class SlotTracker:
    """Groups keyframes, in the order in which they are expected, into slots of `slot_frames`."""

    def __init__(self, slot_frames: int) -> None:
        self._slot_frames = slot_frames
        self._expected = 0
        self._closed = False
        self._pending: dict[int, _Pending] = {}
        self._slot_of: dict[int, int] = {}

    @property
    def slots(self) -> int:
        """How many slots the keyframes seen so far make, a last unfilled one included."""
        return -(-self._expected // self._slot_frames)

    def expect(self, key_index: int, jpeg: bytes) -> None:
        """A keyframe was decoded; its result will come."""
        index = self._expected // self._slot_frames
        self._expected += 1
        self._slot_of[key_index] = index
        pending = self._pending.setdefault(index, _Pending())
        pending.key_indices.append(key_index)
        pending.jpegs.append(jpeg)

    def settle(self, record: KeyframeRecord) -> ReadySlot | None:
        """A keyframe has its result; returns its slot when that was the last one missing."""
        index = self._slot_of.pop(record.key_index)
        self._pending[index].results[record.key_index] = record
        return self._take(index)

    def close(self) -> ReadySlot | None:
        """No more keyframes come; returns the last slot when only filling up was missing."""
        self._closed = True
        return next(self._takeable(), None)

    def _takeable(self) -> Iterator[ReadySlot]:
        for index in tuple(self._pending):
            slot = self._take(index)
            if slot is not None:
                yield slot

    def _take(self, index: int) -> ReadySlot | None:
        pending = self._pending[index]
        known, seen = len(pending.results), len(pending.key_indices)
        if known < seen or (seen < self._slot_frames and not self._closed):
            return None
        del self._pending[index]
        records = [pending.results[key_index] for key_index in pending.key_indices]
        images = [SlotImage(jpeg, record.time_s) for jpeg, record in zip(pending.jpegs, records, strict=True)]
        missing = self._slot_frames - seen
        last = SlotImage(images[-1].jpeg, images[-1].time_s, repeated=True)
        return ReadySlot(index, (*images, *[last] * missing), (*records, *[records[-1]] * missing))
