"""Slots: which keyframes of which slot have a Stage 1 result, and what becomes of a slot that is ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline_ver2.errors import DeadlineShed, QueueFull, RequestError, StageError, StageUnreachable
from pipeline_ver2.prompts import Asked, Question, SlotImage
from pipeline_ver2.results import KeyframeRecord, SlotRecord, SlotState
from pipeline_ver2.stage_http import StageTimes


@dataclass(frozen=True, slots=True)
class ReadySlot:
    """A slot whose keyframes all have a result; images and keyframes in time order, filled up at the end.

    `arrived_s` is when the last frame of a live source arrived, on the run's clock.
    """

    index: int
    images: tuple[SlotImage, ...]
    keyframes: tuple[KeyframeRecord, ...]
    arrived_s: float | None = None

    @property
    def key_indices(self) -> tuple[int, ...]:
        """The keyframes' numbers, the last one repeated where the slot was filled up."""
        return tuple(record.key_index for record in self.keyframes)

    def question(self, labels: Sequence[str]) -> Question:
        """What Stage 2 is asked about this slot."""
        return Question(self.images, tuple(record.detections for record in self.keyframes), tuple(labels))

    def unasked(self, gate: Literal["all", "detections"]) -> SlotRecord | None:
        """The record of a slot that Stage 2 is not asked about; None if it is to be asked."""
        failed = [record for record in self.keyframes if record.state == "failed"]
        if failed and all((record.reason or "").startswith(DeadlineShed.code) for record in failed):
            return self._record("shed", reason=failed[0].reason)
        if failed:
            return self._record("failed", reason="stage1_failed")
        if gate == "detections" and not any(record.detections for record in self.keyframes):
            return self._record("skipped", reason="gate: no detections")
        return None

    def answered(self, asked: Asked, times: StageTimes | None, duration_s: float) -> SlotRecord:
        """The record of a slot that was asked about, whether or not a valid answer came."""
        problem, answer = asked.problem, asked.answer
        state: SlotState = "shed" if isinstance(problem, DeadlineShed) else "failed"
        return self._record(
            state if answer is None else "ok",
            reason=None if problem is None else f"{problem.code}: {problem}",
            answer=None if answer is None else answer.body,
            confidence=None if answer is None else answer.confidence,
            raw_text=asked.raw_text,
            finish_reason=asked.finish_reason,
            attempts=asked.attempts,
            queue_wait_s=None if times is None else times.queue_s,
            duration_s=duration_s,
        )

    def refused(self, error: StageError | RequestError) -> SlotRecord:
        """The record of a slot that Stage 2 refused to take."""
        state: SlotState = "shed" if isinstance(error, DeadlineShed) else "failed"
        attempts = int(not isinstance(error, QueueFull | DeadlineShed | StageUnreachable))
        return self._record(state, reason=f"{error.code}: {error}", attempts=attempts)

    def dropped(self, reason: str) -> SlotRecord:
        """The record of a slot that had to give way before it could be sent."""
        return self._record("dropped", reason=reason)

    def _record(self, state: SlotState, **outcome: Any) -> SlotRecord:  # noqa: ANN401 - fields of SlotRecord
        return SlotRecord(
            index=self.index,
            key_indices=self.key_indices,
            start_s=self.keyframes[0].time_s,
            end_s=self.keyframes[-1].time_s,
            state=state,
            **outcome,
        )


@dataclass(slots=True)
class _Pending:
    key_indices: list[int] = field(default_factory=list)
    jpegs: list[bytes] = field(default_factory=list)
    results: dict[int, KeyframeRecord] = field(default_factory=dict)
    arrived_s: float | None = None
    cut: bool = False


class SlotTracker:
    """Groups keyframes, in the order in which they are expected, into slots of `slot_frames`."""

    def __init__(self, slot_frames: int) -> None:
        self._slot_frames = slot_frames
        self._pending: dict[int, _Pending] = {}
        self._slot_of: dict[int, int] = {}
        self._room = 0
        self.slots = 0
        """How many slots the keyframes seen so far make, a last unfilled one included."""

    def expect(self, key_index: int, jpeg: bytes, arrived_s: float | None = None) -> None:
        """A keyframe was decoded; its result will come."""
        if not self._room:
            self.slots, self._room = self.slots + 1, self._slot_frames
        self._room -= 1
        index = self._slot_of[key_index] = self.slots - 1
        pending = self._pending.setdefault(index, _Pending())
        pending.key_indices.append(key_index)
        pending.jpegs.append(jpeg)
        pending.arrived_s = arrived_s

    def settle(self, record: KeyframeRecord) -> ReadySlot | None:
        """A keyframe has its result; returns its slot when that was the last one missing."""
        index = self._slot_of.pop(record.key_index)
        self._pending[index].results[record.key_index] = record
        return self._take(index)

    def close(self) -> ReadySlot | None:
        """The last slot gets no more keyframes, a next one begins anew; returns it when only filling up was missing."""
        self._room = 0
        last = self._pending.get(self.slots - 1)
        if last is None:
            return None
        last.cut = True
        return self._take(self.slots - 1)

    def _take(self, index: int) -> ReadySlot | None:
        pending = self._pending[index]
        known, seen = len(pending.results), len(pending.key_indices)
        if known < seen or (seen < self._slot_frames and not pending.cut):
            return None
        del self._pending[index]
        records = [pending.results[key_index] for key_index in pending.key_indices]
        images = [SlotImage(jpeg, record.time_s) for jpeg, record in zip(pending.jpegs, records, strict=True)]
        missing = self._slot_frames - seen
        last = SlotImage(images[-1].jpeg, images[-1].time_s, repeated=True)
        filled, repeated = (*images, *[last] * missing), (*records, *[records[-1]] * missing)
        return ReadySlot(index, filled, repeated, pending.arrived_s)
