"""Events: consecutive slots with the same confirmed action.

Slots settle out of order and are put in order first. A slot counts for an event if its answer names an action that
Stage 1 saw as well. An event ends when a slot says something else, another action or none that is confirmed. Slots
that say nothing, because they failed, were shed or dropped, or never came, do not end it unless there are more than
`gap_slots` in a row, or more time passes than those take: a live source may have been away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline_ver2.results import KeyframeRecord, SlotRecord
from pipeline_ver2.tracker import ReadySlot

EventState = Literal["begun", "updated", "ended"]
EndReason = Literal["over", "gap", "end_of_source", "cancelled", "failed", "interrupted"]

_SILENT_STATES = frozenset({"failed", "shed", "dropped"})


class BestSlot(BaseModel):
    """The slot of an event that was answered with most confidence; `time_s` is that of its best image."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    index: int
    time_s: float
    confidence: float | None
    description: str | None


class Event(BaseModel):
    """What is known of an event at a moment; the last one of an id wins.

    It is told when it has begun, when a better slot than the best one so far has joined it, and when it has ended.
    Times ending in `_s` are seconds of the source, `at` is when it was told. `image` is a file in the output folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    type: Literal["event"] = "event"
    id: str
    stream: str
    action: str
    state: EventState
    reason: EndReason | None = None
    start_s: float
    end_s: float
    first_slot: int
    last_slot: int
    best: BestSlot
    image: str | None = None
    at: datetime

    @property
    def message_id(self) -> str:
        """The same for the same news, however often it is told."""
        return f"{self.id}_{self.state}_{self.best.index if self.state == 'updated' else self.last_slot}"


@dataclass(frozen=True, slots=True)
class Picture:
    """The best image of a slot: JPEG, and its time in the source."""

    jpeg: bytes
    time_s: float


@dataclass(frozen=True, slots=True)
class Notice:
    """News of an event, and its best image so far if there is one."""

    event: Event
    jpeg: bytes | None


@dataclass(slots=True)
class _Open:
    """The event that goes on."""

    event: Event
    jpeg: bytes | None


class EventTracker:
    """Makes events of the slots of one run.

    Args:
        tell: Gets the news, in the order of the source.
        run_id: What the ids of the events begin with.
        stream: What the source is called.
        gap_slots: Slots in a row that say nothing and do not end an event.
        look_ahead: How many later slots may have settled before a missing one is done without.
        slot_s: Time from one slot to the next; None does not look at times.
    """

    def __init__(
        self,
        tell: Callable[[Notice], None],
        *,
        run_id: str,
        stream: str,
        gap_slots: int,
        look_ahead: int,
        slot_s: float | None = None,
    ) -> None:
        self._tell = tell
        self._run_id = run_id
        self._stream = stream
        self._gap_slots = gap_slots
        self._look_ahead = look_ahead
        # Half a slot more, as times are not exact.
        self._longest_gap_s = math.inf if slot_s is None else (gap_slots + 1.5) * slot_s
        self._next = 0
        self._waiting: dict[int, tuple[SlotRecord, Picture | None]] = {}
        self._pictures: dict[int, Picture] = {}
        self._open: _Open | None = None
        self._silent = 0
        self.begun = 0
        self.late = 0
        """Slots that settled after they had been done without."""

    def answered(self, slot: ReadySlot, record: SlotRecord) -> None:
        """Take the best image of a slot that is about to settle, if it counts for an event."""
        action = confirmed_action(record)
        if action is not None and record.index >= self._next:
            self._pictures[record.index] = best_picture(slot, action)

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """A slot has its record."""
        if isinstance(record, KeyframeRecord):
            return
        picture = self._pictures.pop(record.index, None)
        if record.index < self._next:
            self.late += 1
            return
        self._waiting[record.index] = (record, picture)
        while self._next in self._waiting or len(self._waiting) > self._look_ahead:
            self._take_next()

    def close(self, reason: EndReason) -> None:
        """No more slots come; an event that goes on ends for this reason."""
        while self._waiting:
            self._take_next()
        self.end(reason)

    def end(self, reason: EndReason) -> None:
        """End the event that goes on, if there is one; slots may come that begin others."""
        ended, self._open = self._open, None
        if ended is not None:
            self._say(ended, state="ended", reason=reason)

    def _take_next(self) -> None:
        """Go on with the next slot there is."""
        index = min(self._waiting)
        if index > self._next:
            self._miss(index - self._next)
        record, picture = self._waiting.pop(index)
        self._next = index + 1
        action = confirmed_action(record)
        if action is not None:
            self._join(record, action, picture)
        elif record.state in _SILENT_STATES:
            self._miss(1)
        else:
            self.end("over")

    def _miss(self, slots: int) -> None:
        self._silent += slots
        if self._silent > self._gap_slots:
            self.end("gap")

    def _join(self, record: SlotRecord, action: str, picture: Picture | None) -> None:
        self._silent = 0
        if self._open is not None and record.start_s - self._open.event.end_s > self._longest_gap_s:
            self.end("gap")
        if self._open is not None and self._open.event.action != action:
            self.end("over")
        best, jpeg = _best_slot(record, picture), None if picture is None else picture.jpeg
        if self._open is None:
            self._begin(record, action, best, jpeg)
            return
        last = {"end_s": record.end_s, "last_slot": record.index}
        if _is_better(best, self._open.event.best):
            self._open.jpeg = jpeg
            self._say(self._open, state="updated", best=best, **last)
        else:
            self._open.event = self._open.event.model_copy(update=last)

    def _begin(self, record: SlotRecord, action: str, best: BestSlot, jpeg: bytes | None) -> None:
        self.begun += 1
        event = Event(
            id=f"{self._run_id}-{record.index}",
            stream=self._stream,
            action=action,
            state="begun",
            start_s=record.start_s,
            end_s=record.end_s,
            first_slot=record.index,
            last_slot=record.index,
            best=best,
            at=datetime.now(UTC),
        )
        self._open = _Open(event, jpeg)
        self._say(self._open)

    def _say(self, of: _Open, **changes: object) -> None:
        of.event = of.event.model_copy(update={**changes, "at": datetime.now(UTC)})
        self._tell(Notice(of.event, of.jpeg))


def confirmed_action(record: SlotRecord) -> str | None:
    """The action that both stages saw in a slot; None if there is none."""
    answer = record.answer or {}
    action = answer.get("action")
    return action if isinstance(action, str) and answer.get("confirmed") is True else None


def best_picture(slot: ReadySlot, action: str) -> Picture:
    """The image on which Stage 1 was surest of the action; the middle one if it never saw it."""
    scores = [
        max((label.score for found in keyframe.detections for label in found.labels if label.name == action), default=0)
        for keyframe in slot.keyframes
    ]
    best = scores.index(max(scores)) if any(scores) else len(scores) // 2
    return Picture(slot.images[best].jpeg, slot.images[best].time_s)


def _best_slot(record: SlotRecord, picture: Picture | None) -> BestSlot:
    described = (record.answer or {}).get("description")
    return BestSlot(
        index=record.index,
        time_s=record.start_s if picture is None else picture.time_s,
        confidence=record.confidence,
        description=described if isinstance(described, str) else None,
    )


def _is_better(new: BestSlot, best: BestSlot) -> bool:
    return new.confidence is not None and (best.confidence is None or new.confidence > best.confidence)
