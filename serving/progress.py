"""How far a job is: counted while it runs, kept in its folder, told to clients as server-sent events.

Answers are followed in results.jsonl itself. The id of an event is the offset in that file behind its record, so a
client that was cut off goes on where it was, even after the server has started again.
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
from pipeline_ver2.results import JOURNAL_NAME, KeyframeRecord, SlotRecord, read_results
from serving.jobs import JobFolder, JobRecord

POLL_S = 0.25
KEEP_ALIVE_S = 15.0

_PIECE_BYTES = 256 * 1024


class Progress(BaseModel):
    """Counters of both stages. `frames_expected` is the header's word, None if it cannot be believed."""

    model_config = ConfigDict(frozen=True)

    frames: int = 0
    frames_expected: int | None = None
    keyframes: dict[str, int] = {}
    slots: dict[str, int] = {}


class ProgressCounter(Silent):
    """An observer that counts, and writes the counts down when told to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._frames: tuple[int, int | None] = (0, None)
        self._keyframes: Counter[str] = Counter()
        self._slots: Counter[str] = Counter()
        self._written = Progress()

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
        frames, expected = self._frames
        now = Progress(
            frames=frames, frames_expected=expected, keyframes=dict(self._keyframes), slots=dict(self._slots)
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
    folder: JobFolder, look: Callable[[], Awaitable[JobRecord | None]], after: int, stopping: asyncio.Event
) -> AsyncIterator[bytes]:
    """A job's events until its end, or until the server stops, which a client takes as a cut and asks again.

    Args:
        folder: The job's folder.
        look: Reads the job; None if it is gone.
        after: Offset in results.jsonl behind the last record that the client has.
        stopping: Set when the server stops.
    """
    offset = await asyncio.to_thread(_checked_offset, folder.path / JOURNAL_NAME, after)
    shown: JobRecord | None = None
    counted, told_at = Progress(), time.monotonic()
    while (record := await look()) is not None and not stopping.is_set():
        events: list[bytes] = []
        if record != shown:
            events.append(_event("state", record.model_dump_json()))
        # In this order: of a job seen ended, every record is in the file by now.
        lines, offset = await asyncio.to_thread(_lines_behind, folder.path / JOURNAL_NAME, offset)
        events += [_event(kind, line, end) for kind, line, end in lines]
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


def _closing_events(folder: JobFolder, record: JobRecord) -> list[bytes]:
    try:
        warnings = read_results(folder.path).warnings
    except ResultsError:  # it ended before there were any
        warnings = ()
    told = [_event("warning", json.dumps({"message": warning})) for warning in warnings]
    return [*told, _event("end", record.model_dump_json())]


def _checked_offset(journal: Path, offset: int) -> int:
    """The offset if a line ends there, else 0."""
    if offset <= 0:
        return 0
    try:
        with journal.open("rb") as file:
            file.seek(offset - 1)
            return offset if file.read(1) == b"\n" else 0
    except OSError:
        return 0


def _lines_behind(journal: Path, offset: int) -> tuple[list[tuple[str, str, int]], int]:
    """Whole records behind an offset, a bounded number, each with its type and the offset behind it; the new offset."""
    try:
        with journal.open("rb") as file:
            file.seek(offset)
            piece = file.read(_PIECE_BYTES)
            if piece and b"\n" not in piece:
                piece += file.readline()
    except OSError:
        return [], offset
    lines: list[tuple[str, str, int]] = []
    for line in piece[: piece.rfind(b"\n") + 1].splitlines(keepends=True):
        offset += len(line)
        text = line.decode("utf-8", errors="replace").rstrip("\n")
        kind = _kind(text)
        if kind is not None and kind != "header":
            lines.append((kind, text, offset))
    return lines, offset


def _kind(line: str) -> str | None:
    """The type of a record; None for what is no record, which ends the job when it is run, but not who follows it."""
    try:
        return str(json.loads(line)["type"])
    except (ValueError, TypeError, KeyError):
        return None
