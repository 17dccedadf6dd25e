"""The journal of a live run: results.jsonl, and older ones beside it, bounded in size, age and number.

Each file begins with the header and can be read alone. results-000001.jsonl is the first, results.jsonl the newest.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from pipeline_ver2.config_live import Rotate
from pipeline_ver2.errors import ResultsError
from pipeline_ver2.results import JOURNAL_NAME, Header, Journal, Line, Records

_OLD = re.compile(r"results-(\d{6,})\.jsonl")
_MIB = 1024 * 1024


def rotated_files(folder: Path) -> list[Path]:
    """The older files of a journal, oldest first."""
    return sorted((path for path in folder.iterdir() if _OLD.fullmatch(path.name)), key=number_of)


class RotatingJournal(Journal):
    """A journal that begins a new file when one is large or old enough, and deletes the oldest.

    A run that goes on in a folder begins a file of its own: nothing of an earlier run is taken up.
    """

    def __init__(
        self, folder: Path, limits: Rotate, *, resume: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(folder, resume=resume)
        self._limits = limits
        self._clock = clock
        self._header: Header | None = None
        self._began = 0.0

    def start(self, header: Header) -> Records:
        """Open a new file; what an earlier run left is put aside.

        Raises:
            ResultsError: It cannot be written.
        """
        self._header, self._began = header, self._clock()
        try:
            self._put_aside()
        except OSError as error:
            raise ResultsError(f"{self.folder / JOURNAL_NAME}: {error.strerror}") from error
        return super().start(header)

    def _write(self, line: Line) -> None:
        super()._write(line)
        if self._file is None or self._header is None or isinstance(line, Header):
            return
        large = self._file.tell() >= self._limits.mb * _MIB
        if large or self._clock() - self._began >= 60 * self._limits.minutes:
            self._file.close()
            self._file = None
            self.start(self._header)

    def _put_aside(self) -> None:
        current = self.folder / JOURNAL_NAME
        if not current.exists():
            return
        old = rotated_files(self.folder)
        current.rename(self.folder / rotated_name(number_of(old[-1]) + 1 if old else 1))
        for path in old[: max(0, len(old) + 1 - self._limits.files)]:
            path.unlink(missing_ok=True)


def rotated_name(number: int) -> str:
    """What the older file of a number is called."""
    return f"results-{number:06d}.jsonl"


def number_of(path: Path) -> int:
    """The number of an older file; 0 if it is none."""
    found = _OLD.fullmatch(path.name)
    return int(found.group(1)) if found else 0
