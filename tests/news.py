"""News of events for tests of those who pass it on."""

from __future__ import annotations

from datetime import UTC, datetime

from pipeline_ver2.events import BestSlot, Event, EventState, Notice


def event(number: int = 0, state: EventState = "begun", action: str = "walk") -> Event:
    """An event that began in slot `number`."""
    return Event(
        id=f"run-{number}",
        stream="gate",
        action=action,
        state=state,
        reason="over" if state == "ended" else None,
        start_s=float(number),
        end_s=number + 0.6,
        first_slot=number,
        last_slot=number,
        best=BestSlot(index=number, time_s=number + 0.3, confidence=0.5, description="One person."),
        at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )


def notice(number: int = 0, state: EventState = "begun", action: str = "walk", jpeg: bytes | None = b"jpeg") -> Notice:
    """News of it."""
    return Notice(event(number, state, action), jpeg)
