"""Keeping the finished parts of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ver2.errors import ResultsError
from serving.bench.bars import Bar
from serving.demo.kept import Kept, identity

BARS = [Bar("one", 0.912345, ">=", 0.9), Bar("two", 3, "<=", 1)]


def test_a_finished_part_is_there_the_next_time(tmp_path: Path) -> None:
    """Figures and bars come back as they were; parts that were not done do not."""
    path = tmp_path / "new" / "parts.json"
    Kept(path, "me").put("detector", {"map50": 0.912345}, BARS)
    again = Kept(path, "me")
    assert again.get("detector") == ({"map50": 0.912345}, BARS)
    assert again.get("answerer") is None
    assert [file.name for file in path.parent.iterdir()] == ["parts.json"]


def test_parts_of_something_else_are_not_taken_up(tmp_path: Path) -> None:
    """Other models or other numbers: everything is measured anew, and the file is that of the new evaluation."""
    path = tmp_path / "parts.json"
    Kept(path, "me").put("detector", {}, BARS)
    other = Kept(path, "you")
    assert other.get("detector") is None
    other.put("clips", {}, [])
    assert Kept(path, "me").get("detector") is None
    assert Kept(path, "you").get("clips") == ({}, [])


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    """Parts are there for this evaluation only."""
    kept = Kept(None, "me")
    kept.put("clips", {}, [])
    assert kept.get("clips") == ({}, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", '{"parts": {}}', '{"belongs_to": "me", "parts": 3}'])
def test_another_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    """A file of somebody else is refused by its name and stays as it is."""
    path = tmp_path / "notes.json"
    path.write_text(content)
    with pytest.raises(ResultsError, match=r"notes\.json"):
        Kept(path, "me")
    assert path.read_text() == content


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A folder that is a file."""
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="file"):
        Kept(tmp_path / "file" / "parts.json", "me").put("clips", {}, [])


def test_identity_is_that_of_the_bytes_and_the_settings(tmp_path: Path) -> None:
    """Another model under the same name, or another number of clips, is another evaluation."""
    model = tmp_path / "model"
    model.write_bytes(b"one")
    first = identity([model], {"clips": 600})
    assert first == identity([model], {"clips": 600})
    assert first != identity([model], {"clips": 601})
    model.write_bytes(b"two")
    assert first != identity([model], {"clips": 600})
    with pytest.raises(ResultsError, match="nowhere"):
        identity([tmp_path / "nowhere"], {})
