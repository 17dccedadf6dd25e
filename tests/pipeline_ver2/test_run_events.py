"""The events of runs against scripted stages: what is written, what is told, and that nobody is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pipeline_ver2.config import Config
from pipeline_ver2.event_file import EVENTS_NAME, IMAGES_NAME
from pipeline_ver2.job import Job, Silent
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import JOURNAL_NAME, KeyframeRecord, SlotRecord, read_results
from pipeline_ver2.run_events import RunEvents
from tests.broker import MOSQUITTO, broker, watcher
from tests.pipeline_ver2.conftest import settings_for
from tests.pipeline_ver2.test_events import record, slot
from tests.receiver import PATIENCE_S, receiver
from tests.receiver import hang as hang_up
from tests.stand_ins import Rule, Stages, answer, completion, hang, stand_ins


def events_in(folder: Path) -> list[dict[str, Any]]:
    """The events of a folder, header left out."""
    return [json.loads(line) for line in (folder / EVENTS_NAME).read_text().splitlines()][1:]


def ended_in(folder: Path) -> list[tuple[str, int, int, str]]:
    """Action, first and last slot and reason of the events that have ended."""
    ended = [event for event in events_in(folder) if event.get("state") == "ended"]
    return [(event["action"], event["first_slot"], event["last_slot"], event["reason"]) for event in ended]


def answers(**by_slot: str) -> Rule:
    """Slots named `slot_N` get this action, `failed` an answer that is none; others walk."""

    async def reply(_request: web.Request, key: str, _time: int) -> web.Response | None:
        word = by_slot.get(key.replace("-", "_"))
        return None if word is None else completion("no") if word == "failed" else answer(word)

    return reply


async def test_one_event_over_the_whole_clip(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """It is written with its image, counted in the results, and ends with the source."""
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))
    assert ended_in(tmp_path) == [("walk", 0, 4, "end_of_source")]
    event = events_in(tmp_path)[-1]
    assert (event["stream"], event["start_s"], event["best"]["description"]) == (
        "clip",
        0.33333333333333331,
        "One person.",
    )
    assert (tmp_path / event["image"]).read_bytes()[:3] == b"\xff\xd8\xff"
    assert (results.counts.events, results.warnings) == (1, ())


async def test_no_event(clip: Path, tmp_path: Path) -> None:
    """Where Stage 1 found nobody nothing is confirmed; the file says that there was nothing."""
    async with stand_ins(found=0) as stages:
        results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))
    assert (events_in(tmp_path), results.counts.events) == ([], 0)
    assert not (tmp_path / IMAGES_NAME).exists()


async def test_many_events_and_a_gap(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """A failed slot does not split an event, an action that was not confirmed does."""
    stages.stage2.rule = answers(slot_1="failed", slot_3="run")
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))
    assert ended_in(tmp_path) == [("walk", 0, 2, "over"), ("walk", 4, 4, "end_of_source")]
    assert results.counts.events == 2


async def test_answers_out_of_order_make_the_same_events(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """The first slot is answered last."""
    others = asyncio.Event()

    async def first_is_last(_request: web.Request, key: str, _time: int) -> web.Response | None:
        if key == "slot-0":
            await others.wait()
        elif key == "slot-4":
            others.set()
        return answer("none") if key == "slot-2" else None

    stages.stage2.rule = first_is_last
    await run_pipeline(Job(clip, tmp_path), settings_for(stages))
    assert ended_in(tmp_path) == [("walk", 0, 1, "over"), ("walk", 3, 4, "end_of_source")]


async def stopped(clip: Path, stages: Stages, out: Path, settings: Config, until: Callable[[], bool]) -> None:
    """Run a clip with slot 3 never answered, and cancel it when it is so."""

    async def hang_at_three(request: web.Request, key: str, time: int) -> None:
        if key == "slot-3":
            await hang(request, key, time)

    stages.stage2.rule = hang_at_three
    task = asyncio.create_task(run_pipeline(Job(clip, out), settings))
    async with asyncio.timeout(PATIENCE_S):
        while not until():  # noqa: ASYNC110 - files set no event
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


async def test_a_cancelled_run_ends_its_event_and_a_resumed_one_tells_it_whole(
    clip: Path, stages: Stages, tmp_path: Path
) -> None:
    """Nothing is lost or doubled over `--resume`; ids stay, so that who is told twice can tell."""
    async with receiver() as server:
        settings = settings_for(
            stages, pipeline__stage2_window=1, events__webhook={"url": server.url}, events__flush_s=30.0
        )
        journal = tmp_path / JOURNAL_NAME
        await stopped(clip, stages, tmp_path, settings, lambda: journal.exists() and '"index":2' in journal.read_text())
        assert ended_in(tmp_path) == [("walk", 0, 2, "cancelled")]
        before = {event["id"] for event in events_in(tmp_path)}

        stages.stage2.rule = answers()
        results = await run_pipeline(Job(clip, tmp_path, resume=True), settings)
        assert ended_in(tmp_path) == [("walk", 0, 4, "end_of_source")]
        assert [event["state"] for event in events_in(tmp_path)] == ["begun", "ended"]
        assert results.counts.events == 1
        assert {event["id"] for event in events_in(tmp_path)} == before
        assert (tmp_path / events_in(tmp_path)[-1]["image"]).exists()
    told = [post.id for post in server.posts]
    assert set(told) == {f"{before.copy().pop()}_{news}" for news in ("begun_0", "ended_2", "ended_4")}
    assert told.count(f"{before.pop()}_ended_4") == 1


async def test_a_resume_of_a_whole_run_tells_the_same(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """All slots are known, none is asked about, and the file is as before."""
    stages.stage2.rule = answers(slot_2="run")
    await run_pipeline(Job(clip, tmp_path), settings_for(stages))
    first = ended_in(tmp_path)
    stages.stage2.keys.clear()
    await run_pipeline(Job(clip, tmp_path, resume=True), settings_for(stages))
    assert (ended_in(tmp_path), stages.stage2.keys) == (first, [])
    assert len(first) == 2


@pytest.mark.fault("E1")
async def test_a_webhook_that_hangs_holds_nothing_up(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """All slots are answered while the first post hangs; what was not told is counted and said in the results."""
    stages.stage2.rule = answers(slot_1="run", slot_3="run")
    async with receiver(hang_up) as server:
        settings = settings_for(stages, events__webhook={"url": server.url}, events__queue_size=2, events__flush_s=0.2)
        results = await run_pipeline(Job(clip, tmp_path), settings)
    assert (results.state, results.counts.ok, results.counts.events) == ("succeeded", 5, 3)
    (warning,) = results.warnings
    # Each of three events has begun and ended: one piece of news was on its way, two waited, three had to go.
    assert warning == f"events: webhook {server.url[:-5]}: 6 of 6 not delivered (3 queue_full, 3 unsent)"
    assert len(server.posts) == 1
    assert read_results(tmp_path).warnings == results.warnings
    assert len(ended_in(tmp_path)) == 3


@pytest.mark.fault("O9")
async def test_a_cancel_does_not_wait_for_a_webhook(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """With a receiver that hangs, a cancelled run returns soon and leaves no task behind."""
    async with receiver(hang_up) as server:
        settings = settings_for(
            stages, pipeline__stage2_window=1, events__webhook={"url": server.url}, events__flush_s=600.0
        )
        await stopped(clip, stages, tmp_path, settings, lambda: bool(server.posts))
        assert [task.get_name() for task in asyncio.all_tasks() if "outlet" in task.get_name()] == []
    assert read_results(tmp_path).warnings[0].endswith("(2 unsent)")


async def test_a_file_that_cannot_be_written_ends_no_run(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """The results say that the events are not all there; others are told of them all the same."""
    (tmp_path / EVENTS_NAME).mkdir()
    async with receiver() as server:
        settings = settings_for(stages, events__webhook={"url": server.url}, events__flush_s=30.0)
        results = await run_pipeline(Job(clip, tmp_path), settings)
    assert (results.state, results.counts.events) == ("succeeded", 1)
    assert results.warnings == (f"events: {EVENTS_NAME}: Is a directory",)
    assert [post.content["type"] for post in server.posts] == ["event.begun", "event.ended"]


async def test_without_a_file(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Nothing is written if it is not wanted; events are counted all the same."""
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages, events__file=False))
    assert results.counts.events == 1
    assert not (tmp_path / EVENTS_NAME).exists()
    assert not (tmp_path / IMAGES_NAME).exists()


@pytest.mark.skipif(MOSQUITTO is None, reason="needs mosquitto, Debian's package of that name")
async def test_a_broker_is_told_of_a_run(clip: Path, stages: Stages, tmp_path: Path, free_port: int) -> None:
    """By the name of the stream; the image is the one that was written."""
    out = tmp_path / "out"
    async with broker(tmp_path, free_port):
        settings = settings_for(stages, events__mqtt={"host": "127.0.0.1", "port": free_port})
        results = await run_pipeline(Job(clip, out, stream="front door"), settings)
        async with watcher(free_port) as late:
            await late.until(lambda: len(late.seen) == 3)
    assert results.warnings == ()
    (last,) = late.on("zroact/front door/walk")
    assert json.loads(last)["state"] == "ended"
    assert late.on("zroact/front door/walk/image") == [(out / json.loads(last)["image"]).read_bytes()]
    assert late.on("zroact/front door") == [b"offline"]


class Noted(Silent):
    """An observer that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """Note a slot."""
        if isinstance(record, SlotRecord):
            self.told.append(record.index)


def live_job(folder: Path, deadline_s: float) -> Job:
    """A run of a live source."""
    return Job(Path("-"), folder, stream="gate", live=LiveSource("rtsp://camera/1", deadline_s=deadline_s))


def live_config(**overrides: Any) -> Config:  # noqa: ANN401 - values of any key
    """A configuration in which a slot takes hardly any time."""
    return Config.model_validate({"pipeline": {"keyframe_interval": 1, "grid_fps": 1000}, "events": overrides})


async def test_a_live_run_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    """The event it left without an end is ended by the next run, whose events have other ids; earlier ones stay."""
    config, noted = live_config(), Noted()
    async with RunEvents(config, live_job(tmp_path, 60), noted) as killed:
        killed.answered(slot(0, 0.5), record(0, "walk"))
        killed.settled(record(0, "walk"))
    async with RunEvents(config, live_job(tmp_path, 60), noted) as events:
        events.settled(record(0, "walk"))
        await events.close("end_of_source")
    written = [line for line in events_in(tmp_path) if line["type"] == "event"]
    assert [(line["state"], line.get("reason")) for line in written] == [
        ("begun", None),
        ("ended", "interrupted"),
        ("begun", None),
        ("ended", "end_of_source"),
    ]
    assert written[0]["id"] == written[1]["id"] != written[2]["id"] == written[3]["id"]
    assert noted.told == [0, 0]


async def test_an_event_of_a_live_source_that_stays_away_ends(tmp_path: Path) -> None:
    """Without any slot for longer than one may take."""
    async with RunEvents(live_config(), live_job(tmp_path, 0.05), Silent()) as events:
        events.settled(record(0, "walk"))
        async with asyncio.timeout(PATIENCE_S):
            while not ended_in(tmp_path):  # noqa: ASYNC110 - files set no event
                await asyncio.sleep(0.01)
    assert ended_in(tmp_path) == [("walk", 0, 0, "gap")]


@pytest.mark.slow
async def test_a_live_run_tells_its_events_as_they_come(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """The event has begun before the source ends."""
    going_on: list[str] = []

    async def look(_request: web.Request, key: str, _time: int) -> None:
        if key.endswith("slot-3"):
            going_on.append(events_in(tmp_path)[-1]["state"])

    stages.stage2.rule = look
    live = LiveSource(str(clip), policy="WAIT")
    job = Job(clip, tmp_path, live=live, stream="gate")
    results = await run_pipeline(job, settings_for(stages))
    assert (results.counts.events, going_on) == (1, ["begun"])
    assert ended_in(tmp_path) == [("walk", 0, 4, "end_of_source")]
