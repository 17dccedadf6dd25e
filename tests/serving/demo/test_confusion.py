"""The picture of confusions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ver2.errors import ResultsError
from serving.demo.confusion import counts, draw
from serving.demo.evaluate_answerer import GIVEN_ACTIONS, RIGHT_ACTIONS

GIVEN = {"walk": {"walk": 7, "run": 2, "invalid": 1}, "none": {"none": 3}, "stand": {}}


def test_rows_are_right_and_columns_given() -> None:
    """Every count is in its place, what never came is 0, none and invalid have places of their own."""
    numbers = counts(GIVEN)
    assert numbers.shape == (7, 8)
    assert numbers.sum() == 13
    walk = RIGHT_ACTIONS.index("walk")
    assert numbers[walk, GIVEN_ACTIONS.index("run")] == 2
    assert numbers[walk, GIVEN_ACTIONS.index("invalid")] == 1
    assert numbers[RIGHT_ACTIONS.index("none"), GIVEN_ACTIONS.index("none")] == 3


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_both_sets_are_drawn(tmp_path: Path, suffix: str) -> None:
    """The file is made, its folder too, even for a set without any slot."""
    path = tmp_path / "new" / f"confusion.{suffix}"
    draw({"A": GIVEN, "B": {}}, "The answerer", path)
    assert path.read_bytes().startswith(b"<?xml" if suffix == "svg" else b"\x89PNG")


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """An unknown format, or a folder that is a file, is an error of the tree that names the file."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "confusion.what", tmp_path / "file" / "confusion.svg"):
        with pytest.raises(ResultsError, match="confusion"):
            draw({"A": GIVEN}, "The answerer", path)
