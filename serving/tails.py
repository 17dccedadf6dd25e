"""The records of a job from any position on, over all files that a live job's journal has been divided into."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Self

from pipeline_ver2.results import JOURNAL_NAME
from pipeline_ver2.rotation import number_of, rotated_files, rotated_name

PIECE_BYTES = 256 * 1024

_OFFSET_BITS = 40


class JournalTail:
    """Reads on from a position, which stays true when the file is put aside: its number and the offset in it.

    The newest file has the number that it will be put aside under. The one file of a job that is not live has the
    first, so that its positions are its offsets. All methods block.

    Args:
        folder: Where results.jsonl is.
        position: Behind a record; where no line ends there, reading begins at the first file there is.
    """

    def __init__(self, folder: Path, position: int = 0) -> None:
        self._folder = folder
        self._number, self._offset = 1 + (max(0, position) >> _OFFSET_BITS), max(0, position) % (1 << _OFFSET_BITS)
        self._find_place()

    @classmethod
    def of_last(cls, folder: Path) -> Self:
        """At the last records of the newest file, no more than a piece of them."""
        tail = cls(folder)
        tail._number, file = tail._newest_file()
        if file is not None:
            with file:
                size = file.seek(0, os.SEEK_END)
                if size > PIECE_BYTES:
                    file.seek(size - PIECE_BYTES)
                    tail._offset = size - PIECE_BYTES + len(file.readline())
        return tail

    @property
    def position(self) -> int:
        """Behind the last line that was read."""
        return ((self._number - 1) << _OFFSET_BITS) + self._offset

    def lines(self) -> list[tuple[bytes, int]]:
        """Whole lines behind the position, a bounded number, each with the position behind it; none at the end."""
        while True:
            following, piece = self._piece()
            if piece or following == self._number:
                break
            self._number, self._offset = following, 0
        found: list[tuple[bytes, int]] = []
        for line in piece.splitlines(keepends=True):
            self._offset += len(line)
            found.append((line, self.position))
        return found

    def _find_place(self) -> None:
        following, file = self._open()
        if following < self._number:
            self._number, self._offset = 1, 0
        if file is None:
            self._offset = 0
            return
        with file:
            file.seek(max(0, self._offset - 1))
            if self._offset and file.read(1) != b"\n":
                self._number, self._offset = 1, 0

    def _piece(self) -> tuple[int, bytes]:
        """The number of the file that follows, or the own one if none does, and whole lines behind the offset."""
        following, file = self._open()
        if file is None:
            return following, b""
        with file:
            file.seek(self._offset)
            piece = file.read(PIECE_BYTES)
            if piece and b"\n" not in piece:
                piece += file.readline()
        return following, piece[: piece.rfind(b"\n") + 1]

    def _open(self) -> tuple[int, IO[bytes] | None]:
        """The number of the file that follows, or of the newest if that is ours or none that follows; and the file.

        Ours may have been deleted, and be None.
        """
        newest, current = self._newest_file()
        if self._number >= newest:
            return newest, current
        if current is not None:
            current.close()
        numbers = [number for number in self._numbers() if number > self._number]
        return min(numbers, default=newest), _opened(self._folder / rotated_name(self._number))

    def _newest_file(self) -> tuple[int, IO[bytes] | None]:
        """Its number and the file, None before it is there. What is put aside while we look is looked at again."""
        while True:
            before = max(self._numbers(), default=0)
            file = _opened(self._folder / JOURNAL_NAME)
            if max(self._numbers(), default=0) == before:
                return before + 1, file
            if file is not None:
                file.close()

    def _numbers(self) -> list[int]:
        try:
            return [number_of(path) for path in rotated_files(self._folder)]
        except OSError:  # the job is gone
            return []


def _opened(path: Path) -> IO[bytes] | None:
    try:
        return path.open("rb")
    except OSError:
        return None
