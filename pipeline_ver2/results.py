"""The records of a run, and the journal (results.jsonl) that survives whatever ends it.

Line 1 is a header that says what the records belong to; then records as they finish, flushed one by one. The last
record of an id wins; a torn last line is cut when the journal is opened again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pipeline_ver2.errors import ResultsError
from pipeline_ver2.wire import Detection

SCHEMA_VERSION = 1
JOURNAL_NAME = "results.jsonl"
RESULTS_NAME = "results.json"
LOCK_NAME = ".lock"

_HASH_PIECE = 4 * 1024 * 1024

RunState = Literal["succeeded", "partial", "failed", "cancelled"]
SlotState = Literal["ok", "failed", "skipped", "shed", "dropped"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Header(_Record):
    """What a journal's records belong to. `run` differs where numbers and times of a live source begin anew."""

    type: Literal["header"] = "header"
    schema_version: int = SCHEMA_VERSION
    source_sha256: str
    fingerprint: str
    run: str | None = None


class KeyframeRecord(_Record):
    """Stage 1's result for one keyframe; boxes in pixels of the upright source frame."""

    type: Literal["keyframe"] = "keyframe"
    key_index: int
    time_s: float
    state: Literal["ok", "failed"]
    reason: str | None = None
    detections: tuple[Detection, ...] = ()


class SlotRecord(_Record):
    """Stage 2's result for one slot. `key_indices` repeats the last keyframe where the slot was filled up.

    Of live sources, `arrived_at` is when the slot's last frame arrived, `latency_s` how long after it the answer came.
    """

    type: Literal["slot"] = "slot"
    index: int
    key_indices: tuple[int, ...]
    start_s: float
    end_s: float
    state: SlotState
    reason: str | None = None
    answer: dict[str, Any] | None = None
    confidence: float | None = None
    raw_text: str | None = None
    finish_reason: str | None = None
    attempts: int = 0
    queue_wait_s: float | None = None
    duration_s: float | None = None
    arrived_at: datetime | None = None
    latency_s: float | None = None


class GapRecord(_Record):
    """A time without pictures of a live source, and why; it is told when it begins and again when it is over."""

    type: Literal["gap"] = "gap"
    index: int
    start_s: float
    end_s: float | None = None
    reason: str
    attempts: int = 0


class VideoRecord(_Record):
    """The source as it was found."""

    width: int
    height: int
    duration_s: float | None
    fps: float | None
    rotation: int
    timestamps: Literal["container", "estimated"]


class Counts(_Record):
    """What the run saw, and what became of it. `lost` are frames, keyframes and slots of live runs, by reason."""

    frames_decoded: int
    frames_grid: int
    keyframes: int
    batches: int
    slots: int
    ok: int
    failed: int
    skipped: int
    shed: int
    dropped: int
    events: int = 0
    gaps: int = 0
    lost: dict[str, dict[str, int]] = Field(default_factory=dict)


class Latency(_Record):
    """Seconds from the arrival of a slot's last frame to its answer, over all answered slots of a live run."""

    count: int
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


class Timing(_Record):
    """Seconds from the call of the orchestrator; `busy_s` is the time in which a span of that name was running."""

    wall_s: float
    first_answer_s: float | None
    stage1_ended_s: float | None
    stage2_began_s: float | None
    busy_s: dict[str, float]
    latency: Latency | None = None


class Results(_Record):
    """The content of results.json."""

    schema_version: int = SCHEMA_VERSION
    state: RunState
    error: str | None = None
    source: str
    video: VideoRecord
    models: dict[str, dict[str, Any]]
    keyframes: tuple[KeyframeRecord, ...]
    slots: tuple[SlotRecord, ...]
    counts: Counts
    timing: Timing
    warnings: tuple[str, ...]


Line = Header | KeyframeRecord | SlotRecord | GapRecord
_LINE: TypeAdapter[Line] = TypeAdapter(Line)


@dataclass
class Records:
    """The last record of each keyframe and slot."""

    keyframes: dict[int, KeyframeRecord] = field(default_factory=dict)
    slots: dict[int, SlotRecord] = field(default_factory=dict)

    def add(self, record: KeyframeRecord | SlotRecord) -> None:
        """Keep a record; an earlier one of the same id is replaced."""
        if isinstance(record, KeyframeRecord):
            self.keyframes[record.key_index] = record
        else:
            self.slots[record.index] = record

    def states(self) -> Counter[SlotState]:
        """How many slots there are of each state."""
        return Counter(slot.state for slot in self.slots.values())

    @property
    def keyframes_seen(self) -> int:
        """How many keyframes there are."""
        return len(self.keyframes)

    def without_failures(self) -> Records:
        """Only what needs no second try: failed keyframes and slots are left out."""
        return Records(
            {index: record for index, record in self.keyframes.items() if record.state == "ok"},
            {index: record for index, record in self.slots.items() if record.state in {"ok", "skipped"}},
        )


class Journal:
    """An output folder, held exclusively, with its results.jsonl.

    Args:
        folder: The output folder; made if it is missing.
        resume: Whether earlier results may be continued.

    Raises:
        ResultsError: Another run holds the folder, or it has results and `resume` is off.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.folder = folder
        self._path = folder / JOURNAL_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / LOCK_NAME).open("w")
        except OSError as error:
            raise ResultsError(f"output folder {folder}: {error.strerror}") from error
        self._file: IO[bytes] | None = None
        try:
            self._take_lock(resume=resume)
        except ResultsError:
            self._lock.close()
            raise

    def _take_lock(self, *, resume: bool) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ResultsError(f"output folder {self.folder} is in use by another run") from error
        if not resume and (self._path.exists() or (self.folder / RESULTS_NAME).exists()):
            raise ResultsError(f"output folder {self.folder} has results already; use --resume or another --out")

    def start(self, header: Header) -> Records:
        """Open the journal and return what it holds already.

        Raises:
            ResultsError: The journal belongs to another source or other settings, or is damaged before its end.
        """
        records = Records()
        try:
            if self._path.exists() and self._path.stat().st_size:
                records = self._load(header)
            self._file = self._path.open("ab")
        except OSError as error:
            raise ResultsError(f"{self._path}: {error.strerror}") from error
        if self._file.tell() == 0:
            self._write(header)
        return records

    def append(self, record: KeyframeRecord | SlotRecord | GapRecord) -> None:
        """Add a record and hand it to the operating system at once.

        Raises:
            ResultsError: It cannot be written, for instance because the disk is full.
        """
        self._write(record)

    def close(self) -> None:
        """Close the journal and free the folder."""
        if self._file is not None:
            with suppress(OSError):  # what a full disk did not take was told when it was written
                self._file.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: Line) -> None:
        if self._file is None:
            raise RuntimeError("the journal was not started")
        try:
            self._file.write(line.model_dump_json(exclude_none=True).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise ResultsError(f"{self._path}: {error.strerror}") from error

    def _load(self, header: Header) -> Records:
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        records = Records()
        for number, line in enumerate(whole.splitlines(), start=1):
            record = self._parse(line, number)
            if number == 1 and record != header:
                raise ResultsError(f"{self._path}: --resume needs the same source and settings, these differ")
            if isinstance(record, KeyframeRecord | SlotRecord):
                records.add(record)
        return records

    def _parse(self, line: bytes, number: int) -> Line:
        try:
            return _LINE.validate_json(line)
        except ValidationError as error:
            raise ResultsError(f"{self._path}: line {number} is no record of this version") from error


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A short digest of the settings that decide results; equal settings have equal digests."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def sha256_of(path: Path, stop: threading.Event | None = None) -> str:
    """SHA-256 of a file's content, in hexadecimal; when `stop` is set it ends early with a digest of no use."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while (piece := file.read(_HASH_PIECE)) and not (stop and stop.is_set()):
            digest.update(piece)
    return digest.hexdigest()


def read_results(folder: Path) -> Results:
    """Load results.json of a folder.

    Raises:
        ResultsError: It is missing or does not fit the schema.
    """
    path = folder / RESULTS_NAME
    try:
        return Results.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise ResultsError(f"{path} is no results file of this version: {error.errors()[0]['msg']}") from error


def write_results(folder: Path, results: Results) -> Path:
    """Write results.json so that a reader sees the old file or the new one, never half of it.

    Raises:
        ResultsError: It cannot be written; no part of it is left.
    """
    path = folder / RESULTS_NAME
    draft = path.with_suffix(".json.part")
    try:
        draft.write_text(results.model_dump_json(indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ResultsError(f"{path}: {error.strerror}") from error
    return path
