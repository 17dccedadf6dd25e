"""Events in the output folder: `events.jsonl`, and the best image of each event below `events/`.

Line 1 is a header with the id of the run, which the ids of its events begin with. A run that goes on with earlier
results comes past all slots again, so it writes the file anew, under the same id: no event is lost or told twice.
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from pipeline_ver2.events import Event

EVENTS_NAME = "events.jsonl"
EARLIER_NAME = "events.1.jsonl"
IMAGES_NAME = "events"

_SCHEMA_VERSION = 1


def new_run_id() -> str:
    """An id of a run."""
    return uuid.uuid4().hex[:12]


def image_name(event_id: str) -> str:
    """Where the best image of an event is in the output folder."""
    return f"{IMAGES_NAME}/{event_id}.jpg"


class EventFile:
    """The events of a run, as files; small writes into the folder that the run writes its results to.

    Args:
        folder: The output folder, which exists.
        max_mb: Size at which the file is begun anew; the one before is kept.
        max_images: How many images are kept.
    """

    def __init__(self, folder: Path, *, max_mb: float, max_images: int) -> None:
        self._folder = folder
        self._path = folder / EVENTS_NAME
        self._images = folder / IMAGES_NAME
        self._max_bytes = max_mb * 1e6
        self._max_images = max_images
        self._kept: deque[Path] = deque()
        self._file: IO[bytes] | None = None
        self._run_id = ""

    def begin_anew(self) -> str:
        """Forget earlier events and begin; the id of the run, which an earlier file of the folder decides.

        Raises:
            OSError: The folder cannot be written to.
        """
        self._run_id = _run_id_of(self._path) or new_run_id()
        for image in self._images.glob("*.jpg"):
            image.unlink()
        self._path.with_name(EARLIER_NAME).unlink(missing_ok=True)
        self._start("wb")
        return self._run_id

    def go_on(self) -> tuple[str, list[Event]]:
        """Begin behind earlier events, under a new id; gives it, and the events that were left without an end.

        Raises:
            OSError: The folder cannot be written to.
        """
        self._run_id = new_run_id()
        self._kept.extend(sorted(self._images.glob("*.jpg"), key=lambda image: image.stat().st_mtime))
        _cut_torn_line(self._path)
        left = _without_end(self._path)
        self._start("ab")
        return self._run_id, left

    def write(self, event: Event) -> None:
        """Add an event and hand it to the operating system at once.

        Raises:
            OSError: It cannot be written.
        """
        if self._file is not None and self._file.tell() > self._max_bytes:
            self.close()
            self._path.replace(self._path.with_name(EARLIER_NAME))
        if self._file is None:
            self._start("ab")
        self._put(event.model_dump_json(exclude_none=True))

    def save_image(self, event_id: str, jpeg: bytes) -> None:
        """Write the best image of an event, over the one before.

        Raises:
            OSError: It cannot be written.
        """
        image = self._folder / image_name(event_id)
        draft = image.with_suffix(".part")
        self._images.mkdir(exist_ok=True)
        draft.write_bytes(jpeg)
        draft.replace(image)
        if not self._kept or self._kept[-1] != image:
            self._kept.append(image)
        while len(self._kept) > self._max_images:
            self._kept.popleft().unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what a full disk did not take was told when it was written
                file.close()

    def _start(self, mode: str) -> None:
        self._file = self._path.open(mode)
        self._put(json.dumps({"type": "header", "schema_version": _SCHEMA_VERSION, "run": self._run_id}))

    def _put(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line.encode() + b"\n")
            self._file.flush()


def _run_id_of(path: Path) -> str | None:
    """The id in the header of an earlier file."""
    try:
        with path.open("rb") as file:
            run_id = json.loads(file.readline())["run"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run_id if isinstance(run_id, str) else None


def _cut_torn_line(path: Path) -> None:
    with suppress(FileNotFoundError), path.open("r+b") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def _without_end(path: Path) -> list[Event]:
    """The last word of events that were not told to have ended."""
    last: dict[str, Event] = {}
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            with suppress(ValidationError):  # a header
                event = Event.model_validate_json(line)
                last[event.id] = event
    return [event for event in last.values() if event.state != "ended"]
