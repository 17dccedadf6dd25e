"""Counting, and following a job by server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.errors import ResultsError
from pipeline_ver2.results import JOURNAL_NAME, KeyframeRecord, SlotRecord
from serving.jobs import JobFolder, JobOptions, JobRecord
from serving.progress import Progress, ProgressCounter, follow, read_progress
from serving.store import JobStore

HEADER = '{"type":"header","schema_version":1,"source_sha256":"0","fingerprint":"0"}'
KEYFRAME = KeyframeRecord(key_index=11, time_s=0.3, state="ok")


def slot(index: int) -> SlotRecord:
    """A slot's record."""
    return SlotRecord(index=index, key_indices=(11,), start_s=0, end_s=1, state="ok", answer={"action": "wälk"})


class Followed:
    """A job with a folder, whose events are read."""

    def __init__(self, store: JobStore, folder: Path) -> None:
        folder.mkdir()
        self.store, self.folder = store, JobFolder(folder)
        store.insert("a", "a.mp4", JobOptions(), None)
        self.stopping = asyncio.Event()

    def write(self, *lines: str) -> None:
        """Append whole lines to the journal."""
        with (self.folder.path / JOURNAL_NAME).open("a") as journal:
            journal.writelines(f"{line}\n" for line in lines)

    async def look(self) -> JobRecord | None:
        """The job as it is."""
        return self.store.get("a")

    async def events(self, after: int = 0) -> list[tuple[str, Any, int | None]]:
        """All events until the end."""
        events = follow(self.folder, self.look, after, self.stopping)
        return [parsed(event) async for event in events]


def parsed(event: bytes) -> tuple[str, Any, int | None]:
    """Kind, data and id of an event."""
    fields = dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))
    number = fields.get("id")
    return fields["event"], json.loads(fields["data"]), None if number is None else int(number)


@pytest.fixture
def followed(store: JobStore, tmp_path: Path) -> Followed:
    """A queued job."""
    return Followed(store, tmp_path / "job")


async def test_a_job_without_records_has_a_state_and_an_end(followed: Followed) -> None:
    """A job cancelled before it began is followed to its end."""
    followed.store.ask_cancel("a")
    events = await followed.events()
    assert [(kind, data["state"]) for kind, data, _ in events] == [("state", "cancelled"), ("end", "cancelled")]


async def test_each_record_is_an_event_and_the_end_comes_last(followed: Followed) -> None:
    """Records that come while somebody looks are told; the header of the file is not."""
    followed.write(HEADER, KEYFRAME.model_dump_json(), slot(0).model_dump_json())
    followed.store.start("a")
    events = follow(followed.folder, followed.look, 0, followed.stopping)
    first = [parsed(await anext(events)) for _ in range(3)]
    assert [kind for kind, _, _ in first] == ["state", "keyframe", "slot"]
    followed.write(slot(1).model_dump_json())
    followed.store.end("a", "succeeded")
    rest = [parsed(event) async for event in events]
    assert [kind for kind, _, _ in rest] == ["state", "slot", "end"]
    assert rest[1][1]["answer"] == {"action": "wälk"}


async def test_going_on_behind_an_id(followed: Followed) -> None:
    """A client that was cut off gets what it has not, from any event on."""
    followed.write(HEADER, *(slot(index).model_dump_json() for index in range(5)))
    followed.store.end("a", "succeeded")
    slots = [event for event in await followed.events() if event[0] == "slot"]
    assert [data["index"] for _, data, _ in slots] == list(range(5))
    for _, data, number in slots:
        assert number is not None
        behind = [event[1]["index"] for event in await followed.events(number) if event[0] == "slot"]
        assert behind == list(range(data["index"] + 1, 5))


@pytest.mark.parametrize("after", [-1, 3, 10**12])
async def test_an_id_that_is_none_of_ours(followed: Followed, after: int) -> None:
    """Everything is told again rather than half a line, or nothing."""
    followed.write(HEADER, slot(0).model_dump_json())
    followed.store.end("a", "succeeded")
    assert [kind for kind, _, _ in await followed.events(after)] == ["state", "slot", "end"]


async def test_a_live_source_begins_anew(followed: Followed) -> None:
    """Each run is told, since its numbers are its own; whoever comes first gets the last file alone."""
    old = followed.folder.path / "results-000001.jsonl"
    old.write_text("".join(f"{line}\n" for line in (live_header("first"), slot(0).model_dump_json())))
    followed.write(live_header("second"), slot(0).model_dump_json())
    followed.store.end("a", "cancelled")
    events = follow(followed.folder, followed.look, 0, followed.stopping, live=True)
    told = [(kind, data.get("run"), number) async for kind, data, number in _parsed(events)]
    assert [(kind, run) for kind, run, _ in told] == [
        ("state", None),
        ("run", "second"),
        ("slot", None),
        ("end", None),
    ]
    first_slot = old.stat().st_size
    events = follow(followed.folder, followed.look, first_slot, followed.stopping, live=True)
    assert [event async for event in _parsed(events)][1][1:] == ({"run": "second"}, told[1][2])


async def _parsed(events: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, Any, int | None]]:
    async for event in events:
        yield parsed(event)


def live_header(run: str) -> str:
    """The header of a live run's journal."""
    return HEADER.replace("}", f',"run":"{run}"}}')


async def test_half_a_line_waits(followed: Followed) -> None:
    """What a kill left is no record; the record that replaces it is told."""
    followed.write(HEADER)
    whole = slot(0).model_dump_json()
    with (followed.folder.path / JOURNAL_NAME).open("a") as journal:
        journal.write(whole[:20])
    events = follow(followed.folder, followed.look, 0, followed.stopping)
    assert parsed(await anext(events))[0] == "state"
    with (followed.folder.path / JOURNAL_NAME).open("a") as journal:
        journal.write(f"{whole[20:]}\n")
    assert parsed(await anext(events))[0] == "slot"
    await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", ["not JSON", "[1]", "{}", "null"])
async def test_a_line_that_is_no_record_is_passed_over(followed: Followed, line: str) -> None:
    """Whoever follows learns the job's end; that such a line fails it is no matter of the followers."""
    followed.write(HEADER, slot(0).model_dump_json(), line, slot(1).model_dump_json())
    followed.store.end("a", "failed")
    assert [kind for kind, _, _ in await followed.events()] == ["state", "slot", "slot", "end"]


async def test_a_stopping_server_cuts_its_followers_off(followed: Followed) -> None:
    """Without an end, so that they come again."""
    followed.stopping.set()
    assert await followed.events() == []


def test_counts_are_written_and_read(tmp_path: Path) -> None:
    """By state, for both stages; before anything is written they are zero."""
    folder = JobFolder(tmp_path)
    assert read_progress(folder) == Progress()
    counter = ProgressCounter(folder.progress)
    counter.write()
    assert not folder.progress.exists()
    counter.decoded(40, 419)
    counter.settled(KEYFRAME)
    counter.settled(slot(0))
    counter.settled(slot(1))
    counter.write()
    expected = Progress(frames=40, frames_expected=419, keyframes={"ok": 1}, slots={"ok": 2})
    assert read_progress(folder) == expected


def test_counts_go_on(tmp_path: Path) -> None:
    """What was counted before is counted still."""
    before = Progress(frames=5, keyframes={"ok": 2})
    counter = ProgressCounter(tmp_path / "progress.json", before)
    counter.settled(KEYFRAME)
    counter.decoded(3, 4)
    counter.write()
    expected = Progress(frames=8, frames_expected=9, keyframes={"ok": 3})
    assert read_progress(JobFolder(tmp_path)) == expected


def test_counts_that_cannot_be_written(tmp_path: Path) -> None:
    """The file is named."""
    counter = ProgressCounter(tmp_path / "gone" / "progress.json")
    counter.decoded(1, None)
    with pytest.raises(ResultsError, match=r"progress\.json"):
        counter.write()
