"""Slots become events: in order, over gaps, with the best image."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from pipeline_ver2.events import EventTracker, Notice, best_picture, confirmed_action
from pipeline_ver2.prompts import SlotImage
from pipeline_ver2.results import KeyframeRecord, SlotRecord, SlotState
from pipeline_ver2.tracker import ReadySlot
from pipeline_ver2.wire import Detection, LabelScore

SLOT_S = 1.0


def keyframe(index: int, **scores: float) -> KeyframeRecord:
    """A keyframe with one person whose labels have these scores."""
    labels = tuple(LabelScore(name=name, score=score) for name, score in scores.items())
    found = (Detection(box=(0, 0, 9, 9), labels=labels),) if labels else ()
    return KeyframeRecord(key_index=index, time_s=index / 3, state="ok", detections=found)


def slot(index: int, *scores: float, action: str = "walk") -> ReadySlot:
    """A slot of as many keyframes as there are scores of the action; its images are named by slot and place."""
    frames = tuple(keyframe(3 * index + place, **{action: score}) for place, score in enumerate(scores))
    images = tuple(SlotImage(f"{index}.{place}".encode(), frame.time_s) for place, frame in enumerate(frames))
    return ReadySlot(index, images, frames)


def record(index: int, word: str, confidence: float | None = 0.5) -> SlotRecord:
    """A slot whose record is a state, or ok with an answer: an action, `?action` if Stage 1 did not see it."""
    times = {"index": index, "key_indices": (1, 2, 3), "start_s": index * SLOT_S, "end_s": index * SLOT_S + 0.6}
    states: tuple[SlotState, ...] = ("failed", "skipped", "shed", "dropped")
    if word in states:
        return SlotRecord.model_validate({**times, "state": word, "reason": "planted"})
    body = {
        "action": word.lstrip("?"),
        "description": f"{word} {index}",
        "confirmed": word != "none" and not word.startswith("?"),
    }
    return SlotRecord.model_validate({**times, "state": "ok", "answer": body, "confidence": confidence})


def tracker(told: list[Notice], *, gap_slots: int = 1, look_ahead: int = 128) -> EventTracker:
    """A tracker that tells a list."""
    return EventTracker(
        told.append, run_id="r", stream="gate", gap_slots=gap_slots, look_ahead=look_ahead, slot_s=SLOT_S
    )


def events_of(told: Sequence[Notice]) -> list[tuple[str, int, int, str | None]]:
    """Action, first and last slot and reason of the events that have ended."""
    ended = [notice.event for notice in told if notice.event.state == "ended"]
    return [(event.action, event.first_slot, event.last_slot, event.reason) for event in ended]


def run(words: str, **settings: int) -> list[Notice]:
    """The news of slots in order, one word each; `-` never comes."""
    told: list[Notice] = []
    events = tracker(told, **settings)
    for index, word in enumerate(words.split()):
        if word != "-":
            events.settled(record(index, word))
    events.close("end_of_source")
    return told


END = "end_of_source"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", []),
        ("none none", []),
        ("?walk ?walk", []),
        ("walk", [("walk", 0, 0, END)]),
        ("walk walk walk", [("walk", 0, 2, END)]),
        ("none walk walk none", [("walk", 1, 2, "over")]),
        ("walk run run walk", [("walk", 0, 0, "over"), ("run", 1, 2, "over"), ("walk", 3, 3, END)]),
        ("walk ?walk walk", [("walk", 0, 0, "over"), ("walk", 2, 2, END)]),
        ("walk skipped walk", [("walk", 0, 0, "over"), ("walk", 2, 2, END)]),
        ("walk failed walk", [("walk", 0, 2, END)]),
        ("walk shed walk dropped walk", [("walk", 0, 4, END)]),
        ("walk failed failed walk", [("walk", 0, 0, "gap"), ("walk", 3, 3, END)]),
        ("walk - walk", [("walk", 0, 2, END)]),
        ("walk - failed walk", [("walk", 0, 0, "gap"), ("walk", 3, 3, END)]),
        ("walk failed run", [("walk", 0, 0, "over"), ("run", 2, 2, END)]),
        ("walk failed", [("walk", 0, 0, END)]),
        ("failed walk", [("walk", 1, 1, END)]),
    ],
)
def test_events_of_slots(words: str, found: list[tuple[str, int, int, str]]) -> None:
    """None, one, many; a slot without an answer does not split an event, two do, and so does any other answer."""
    assert events_of(run(words)) == found


def test_without_gaps() -> None:
    """With `gap_slots` 0 every slot without an answer ends an event."""
    assert events_of(run("walk failed walk", gap_slots=0)) == [("walk", 0, 0, "gap"), ("walk", 2, 2, END)]


def test_news_of_an_event() -> None:
    """It begins at once, is told again with every better slot, and ends once; ids and times are the event's."""
    told: list[Notice] = []
    events = tracker(told)
    for index, confidence in enumerate((0.5, 0.4, 0.9, 0.9)):
        events.answered(slot(index, 0.1, 0.7, 0.2), record(index, "walk", confidence))
        events.settled(record(index, "walk", confidence))
    events.settled(record(4, "none"))
    states = [(notice.event.state, notice.event.best.index, notice.event.last_slot) for notice in told]
    assert states == [("begun", 0, 0), ("updated", 2, 2), ("ended", 2, 3)]
    assert {notice.event.id for notice in told} == {"r-0"}
    assert [notice.event.message_id for notice in told] == ["r-0_begun_0", "r-0_updated_2", "r-0_ended_3"]
    assert [notice.jpeg for notice in told] == [b"0.1", b"2.1", b"2.1"]
    last = told[-1].event
    assert (last.start_s, last.end_s, last.stream, last.reason) == (0, 3.6, "gate", "over")
    assert (last.best.confidence, last.best.description, last.best.time_s) == (0.9, "walk 2", 7 / 3)


@pytest.mark.parametrize("first", [None, 0.2])
def test_a_slot_without_confidence_is_no_better(first: float | None) -> None:
    """Without log-probabilities the first slot stays the best; one with a confidence is better than one without."""
    told: list[Notice] = []
    events = tracker(told)
    events.settled(record(0, "walk", first))
    events.settled(record(1, "walk", None))
    events.settled(record(2, "walk", 0.3))
    assert [notice.event.best.index for notice in told] == [0, 2]


def test_slots_may_settle_in_any_order() -> None:
    """Whatever the order, the news is that of the source's order."""
    words = "walk walk failed walk none run run - run"
    expected = events_of(run(words))
    for seed in range(20):
        told: list[Notice] = []
        events = tracker(told)
        slots = [(index, word) for index, word in enumerate(words.split()) if word != "-"]
        random.Random(seed).shuffle(slots)
        for index, word in slots:
            events.settled(record(index, word))
        events.close("end_of_source")
        assert events_of(told) == expected
        assert [first for _, first, _, _ in expected] == [0, 5]


def test_images_belong_to_their_slots_whatever_the_order() -> None:
    """An image waits with its slot."""
    for order in itertools.permutations(range(3)):
        told: list[Notice] = []
        events = tracker(told)
        for index in order:
            answered = record(index, "walk", 0.1 * index)
            events.answered(slot(index, 0.5), answered)
            events.settled(answered)
        assert [notice.jpeg for notice in told] == [b"0.0", b"1.0", b"2.0"]


def test_a_slot_that_does_not_come_is_done_without() -> None:
    """After `look_ahead` later ones it counts as one without an answer; if it comes after all it is counted as late."""
    told: list[Notice] = []
    events = tracker(told, look_ahead=3)
    for index in (0, 2, 3, 4):
        events.settled(record(index, "walk"))
    assert [notice.event.last_slot for notice in told] == [0]
    events.settled(record(5, "none"))
    assert events_of(told) == [("walk", 0, 4, "over")]
    events.answered(slot(1, 0.5), record(1, "run"))
    events.settled(record(1, "run"))
    events.close("end_of_source")
    assert (len(told), events.late, events.begun) == (2, 1, 1)


def test_a_source_that_was_away_splits_an_event() -> None:
    """Slots that follow each other in number, not in time."""
    told: list[Notice] = []
    events = tracker(told)
    events.settled(record(0, "walk"))
    away = record(1, "walk")
    events.settled(away.model_copy(update={"start_s": 60.0, "end_s": 60.6}))
    events.close("cancelled")
    assert events_of(told) == [("walk", 0, 0, "gap"), ("walk", 1, 1, "cancelled")]


def test_keyframes_are_nothing_to_it() -> None:
    """Only slots make events."""
    told: list[Notice] = []
    events = tracker(told)
    events.settled(keyframe(11, walk=0.9))
    events.close("failed")
    assert told == []


def test_the_best_image() -> None:
    """The one on which Stage 1 was surest of the action; the middle one where it saw others only."""
    assert best_picture(slot(0, 0.2, 0.3, 0.8), "walk").jpeg == b"0.2"
    assert best_picture(slot(0, 0.2, 0.3, 0.8), "run").jpeg == b"0.1"
    assert best_picture(slot(0, 0.2), "run").jpeg == b"0.0"


def test_the_confirmed_action() -> None:
    """Only what both stages say; an answer of another form has none."""
    assert confirmed_action(record(0, "walk")) == "walk"
    assert confirmed_action(record(0, "?walk")) is None
    assert confirmed_action(record(0, "failed")) is None
    other = record(0, "walk").model_copy(update={"answer": {"persons": 2, "confirmed": None}})
    assert confirmed_action(other) is None
