"""The journal of a live run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline_ver2.config_live import Rotate
from pipeline_ver2.errors import ResultsError
from pipeline_ver2.results import JOURNAL_NAME, GapRecord, Header
from pipeline_ver2.rotation import RotatingJournal, rotated_files

HEADER = Header(source_sha256="a", fingerprint="b")
SMALL = Rotate(mb=400 / 2**20, minutes=60, files=3)


def gaps_in(file: Path) -> list[int]:
    """The gaps a file tells; its first line must be the header."""
    first, *others = [json.loads(line) for line in file.read_text().splitlines()]
    assert first["type"] == "header"
    return [line["index"] for line in others]


def fill(journal: RotatingJournal, numbers: range) -> None:
    """Write a record of each number."""
    for number in numbers:
        journal.append(GapRecord(index=number, start_s=number, reason="planted"))


def test_a_new_file_begins_by_size(tmp_path: Path) -> None:
    """Nothing is lost at the seam, and every file can be read alone."""
    with RotatingJournal(tmp_path, SMALL, resume=False) as journal:
        journal.start(HEADER)
        fill(journal, range(12))
    files = [*rotated_files(tmp_path), tmp_path / JOURNAL_NAME]
    told = [gaps_in(file) for file in files]
    assert len(files) > 2
    assert [number for gaps in told for number in gaps] == list(range(12))
    assert all(file.stat().st_size < 600 for file in files)


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    """The oldest go; what is kept is the newest, whole."""
    with RotatingJournal(tmp_path, SMALL, resume=False) as journal:
        journal.start(HEADER)
        fill(journal, range(100))
    old = rotated_files(tmp_path)
    kept = [number for file in (*old, tmp_path / JOURNAL_NAME) for number in gaps_in(file)]
    assert len(old) == 3
    assert kept == list(range(kept[0], 100))
    assert old[-1].name > "results-000010.jsonl"


def test_a_new_file_begins_by_age(tmp_path: Path) -> None:
    """However little was written."""
    now = 0.0
    with RotatingJournal(tmp_path, Rotate(minutes=2), resume=False, clock=lambda: now) as journal:
        journal.start(HEADER)
        for number in range(3):
            now = 100.0 * number
            fill(journal, range(number, number + 1))
    assert [gaps_in(file) for file in (*rotated_files(tmp_path), tmp_path / JOURNAL_NAME)] == [[0, 1, 2], []]


def test_a_run_that_goes_on_begins_its_own_file(tmp_path: Path) -> None:
    """What an earlier run wrote stays as it was, a torn last line too."""
    with RotatingJournal(tmp_path, Rotate(), resume=False) as journal:
        journal.start(HEADER)
        fill(journal, range(2))
    with (tmp_path / JOURNAL_NAME).open("a") as torn:
        torn.write('{"type": "ga')
    with RotatingJournal(tmp_path, Rotate(), resume=True) as journal:
        records = journal.start(Header(source_sha256="other", fingerprint="other"))
        fill(journal, range(5, 6))
    (first,) = rotated_files(tmp_path)
    assert records.slots == {}
    assert first.read_text().endswith('{"type": "ga')
    assert gaps_in(tmp_path / JOURNAL_NAME) == [5]


def test_earlier_results_are_not_overwritten(tmp_path: Path) -> None:
    """Without `resume` a folder with results is refused."""
    with RotatingJournal(tmp_path, Rotate(), resume=False) as journal:
        journal.start(HEADER)
    with pytest.raises(ResultsError, match="has results already"):
        RotatingJournal(tmp_path, Rotate(), resume=False)
