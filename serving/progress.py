"""How far a job is: counted while it runs, kept in its folder, told to clients as server-sent events.

Answers are followed in results.jsonl itself. The id of an event is the position behind its record there, so a client
that was cut off goes on where it was, even after the server has started again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline_ver2.errors import ResultsError
from pipeline_ver2.job import Silent
from pipeline_ver2.results import KeyframeRecord, SlotRecord, read_results
from serving.jobs import JobFolder, JobRecord
from serving.tails import JournalTail

POLL_S = 0.25
KEEP_ALIVE_S = 15.0


class Progress(BaseModel):
    """Counters of both stages. `frames_expected` is the header's word, None if it cannot be believed."""

    model_config = ConfigDict(frozen=True)

    frames: int = 0
    frames_expected: int | None = None
    keyframes: dict[str, int] = {}
    slots: dict[str, int] = {}


_NOTHING = Progress()


class ProgressCounter(Silent):
    """An observer that counts, and writes the counts down when told to.

    Args:
        file: Where to.
        before: What was counted already and is not seen again.
    """

    def __init__(self, file: Path, before: Progress = _NOTHING) -> None:
        self._file = file
        self._before = before
        self._frames: tuple[int, int | None] = (0, None)
        self._keyframes = Counter(before.keyframes)
        self._slots = Counter(before.slots)
        self._written = before

    @property
    def frames(self) -> int:
        """Grid frames decoded so far."""
        return self._frames[0]

    def decoded(self, frames_grid: int, frames_expected: int | None) -> None:
        """So many grid frames are decoded, of so many if the header can be believed."""
        self._frames = (frames_grid, frames_expected)

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """A keyframe or a slot has its record."""
        counter = self._slots if isinstance(record, SlotRecord) else self._keyframes
        counter[record.state] += 1

    def write(self) -> None:
        """Replace the file if something has changed; blocks.

        Raises:
            ResultsError: It cannot be written.
        """
        seen, expected = self._frames
        now = Progress(
            frames=self._before.frames + seen,
            frames_expected=None if expected is None else self._before.frames + expected,
            keyframes=dict(self._keyframes),
            slots=dict(self._slots),
        )
        if now == self._written:
            return
        draft = self._file.with_suffix(".part")
        try:
            draft.write_text(now.model_dump_json(), encoding="utf-8")
            draft.replace(self._file)
        except OSError as error:
            raise ResultsError(f"{self._file}: {error.strerror}") from error
        self._written = now


def read_progress(folder: JobFolder) -> Progress:
    """The counts of a job; zeros before it has begun. Blocks."""
    try:
        return Progress.model_validate_json(folder.progress.read_bytes())
    except (OSError, ValidationError):
        return Progress()


async def follow(
    folder: JobFolder,
    look: Callable[[], Awaitable[JobRecord | None]],
    after: int,
    stopping: asyncio.Event,
    *,
    live: bool = False,
) -> AsyncIterator[bytes]:
    """A job's events until its end, or until the server stops, which a client takes as a cut and asks again.

    Args:
        folder: The job's folder.
        look: Reads the job; None if it is gone.
        after: Position behind the last record that the client has.
        stopping: Set when the server stops.
        live: Whether it follows a live source: whoever has nothing yet gets the last records, not those of days.
    """
    tail = await asyncio.to_thread(_tail, folder, after, live)
    shown: JobRecord | None = None
    counted, told_at = Progress(), time.monotonic()
    while (record := await look()) is not None and not stopping.is_set():
        events: list[bytes] = []
        if record != shown:
            events.append(_event("state", record.model_dump_json()))
        # In this order: of a job seen ended, every record is in the file by now.
        lines = await asyncio.to_thread(tail.lines)
        events += [event for line, position in lines for event in _record_event(line, position)]
        progress = await asyncio.to_thread(read_progress, folder)
        if progress != counted:
            events.append(_event("progress", progress.model_dump_json()))
        shown, counted = record, progress
        for event in events:
            yield event
        if record.has_ended and not lines:
            for event in await asyncio.to_thread(_closing_events, folder, record):
                yield event
            return
        if events:
            told_at = time.monotonic()
        elif time.monotonic() - told_at > KEEP_ALIVE_S:
            yield b":\n\n"
            told_at = time.monotonic()
        if not lines:
            await _pause(stopping)


async def _pause(stopping: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(POLL_S):
            await stopping.wait()
    except TimeoutError:
        pass


def _event(kind: str, data: str, offset: int | None = None) -> bytes:
    name = "" if offset is None else f"id: {offset}\n"
    return f"{name}event: {kind}\ndata: {data}\n\n".encode()


def _tail(folder: JobFolder, after: int, live: bool) -> JournalTail:  # noqa: FBT001 - for a thread
    if live and after <= 0:
        return JournalTail.of_last(folder.path)
    return JournalTail(folder.path, after)


def _record_event(line: bytes, position: int) -> list[bytes]:
    """The event of a record. What is none ends the job when it is run, but not who follows it."""
    text = line.decode("utf-8", errors="replace").rstrip("\n")
    try:
        record = json.loads(text)
        kind = str(record["type"])
    except (ValueError, TypeError, KeyError):
        return []
    if kind != "header":
        return [_event(kind, text, position)]
    return [_event("run", json.dumps({"run": record["run"]}), position)] if "run" in record else []


def _closing_events(folder: JobFolder, record: JobRecord) -> list[bytes]:
    try:
        warnings = read_results(folder.path).warnings
    except ResultsError:  # it ended before there were any
        warnings = ()
    told = [_event("warning", json.dumps({"message": warning})) for warning in warnings]
    return [*told, _event("end", record.model_dump_json())]
