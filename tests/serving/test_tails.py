"""Records from any position on, whatever became of the files meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ver2.config_live import Rotate
from pipeline_ver2.results import JOURNAL_NAME, GapRecord, Header
from pipeline_ver2.rotation import RotatingJournal, rotated_files
from serving.tails import PIECE_BYTES, JournalTail

HEADER = Header(source_sha256="a", fingerprint="b", run="c")
SMALL = Rotate(mb=400 / 2**20, minutes=60, files=3)


def numbers(lines: list[tuple[bytes, int]]) -> list[int]:
    """The gaps that are told."""
    return [GapRecord.model_validate_json(line).index for line, _ in lines if b'"gap"' in line]


def read_on(tail: JournalTail) -> list[tuple[bytes, int]]:
    """All lines to the end."""
    found: list[tuple[bytes, int]] = []
    while lines := tail.lines():
        found += lines
    return found


def fill(folder: Path, wanted: range) -> None:
    """A run that writes a record of each number into files of four."""
    with RotatingJournal(folder, SMALL, resume=True) as journal:
        journal.start(HEADER)
        for number in wanted:
            journal.append(GapRecord(index=number, start_s=number, reason="planted"))


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    """Neither a file nor a folder; what comes is read."""
    tail = JournalTail(tmp_path / "job")
    assert (tail.lines(), tail.position) == ([], 0)
    assert JournalTail.of_last(tmp_path / "job").lines() == []
    (tmp_path / "job").mkdir()
    fill(tmp_path / "job", range(2))
    assert numbers(read_on(tail)) == [0, 1]


def test_all_files_in_order(tmp_path: Path) -> None:
    """From the first to the last, and from each position what is behind it, also after the next file has begun."""
    fill(tmp_path, range(8))
    lines = read_on(JournalTail(tmp_path))
    assert len(rotated_files(tmp_path)) >= 1
    assert numbers(lines) == list(range(8))
    fill(tmp_path, range(8, 10))
    for place, (_, position) in enumerate(lines):
        tail = JournalTail(tmp_path, position)
        assert tail.position == position
        assert numbers(read_on(tail)) == [*numbers(lines[place + 1 :]), 8, 9]


def test_what_was_deleted_is_passed_over(tmp_path: Path) -> None:
    """Whoever was away for too long goes on with what is left."""
    fill(tmp_path, range(4))
    tail = JournalTail(tmp_path)
    position = tail.lines()[-1][1]
    fill(tmp_path, range(4, 100))
    for late in (tail, JournalTail(tmp_path, position), JournalTail(tmp_path)):
        told = numbers(read_on(late))
        assert told == list(range(told[0], 100))
        assert 4 < told[0] < 99


@pytest.mark.parametrize("position", [-1, 3, 10**6, 5 << 40, (5 << 40) + 3, 10**18])
def test_a_position_that_is_none_of_ours(tmp_path: Path, position: int) -> None:
    """Reading begins at the beginning."""
    fill(tmp_path, range(3))
    assert numbers(read_on(JournalTail(tmp_path, position))) == [0, 1, 2]


def test_half_a_line(tmp_path: Path) -> None:
    """In the newest file it waits for its rest; in one that was put aside it never gets it."""
    fill(tmp_path, range(2))
    with (tmp_path / JOURNAL_NAME).open("ab") as file:
        file.write(b'{"type":"gap","in')
    tail = JournalTail(tmp_path)
    assert numbers(read_on(tail)) == [0, 1]
    fill(tmp_path, range(2, 4))
    assert numbers(read_on(tail)) == [2, 3]


def test_the_last_records(tmp_path: Path) -> None:
    """Of a small file all; of a large one no more than a piece, beginning with a whole line."""
    fill(tmp_path, range(2))
    assert numbers(JournalTail.of_last(tmp_path).lines()) == [0, 1]
    lines = [GapRecord(index=index, start_s=0, reason="x" * 100).model_dump_json() for index in range(5000)]
    (tmp_path / JOURNAL_NAME).write_text("".join(f"{line}\n" for line in lines))
    told = read_on(JournalTail.of_last(tmp_path))
    assert numbers(told) == list(range(5000 - len(told), 5000))
    assert PIECE_BYTES - 200 < sum(len(line) for line, _ in told) <= PIECE_BYTES
