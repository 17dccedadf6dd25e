"""The rows of the seed benchmark."""

from __future__ import annotations

import pytest

from pipeline_ver2.errors import ConfigError
from serving.bench.ideal import Workload
from serving.bench.rows import ROWS, choose_rows


def test_all_rows_by_default() -> None:
    """The documented steps in their order, then decoding in the loop and out of it."""
    assert [row.title for row in choose_rows(None)] == [
        "sequential",
        "A",
        "A + B(2)",
        *(f"A + B + C at {limit}" for limit in (1, 2, 3, 4)),
        "A + B + C at 2, F off",
        "A + B + C at 2, F on",
    ]


def test_chosen_rows_keep_the_order_of_the_table() -> None:
    """A comparison reads the same whichever way it was asked for."""
    assert [row.name for row in choose_rows("abc2, sequential")] == ["sequential", "abc2"]


@pytest.mark.parametrize("names", ["abc5", "", "a,,ab2"])
def test_an_unknown_row_is_refused(names: str) -> None:
    """The message names it and what there is."""
    with pytest.raises(ConfigError, match="is no row; they are sequential, a, ab2"):
        choose_rows(names)


def test_every_row_has_its_ideal() -> None:
    """Waiting for all of Stage 1 costs the sequential row and both gathered ones the same 1.74 s."""
    ideals = {name: round(row.ideal_s(Workload()), 3) for name, row in ROWS.items()}
    assert ideals == {
        "sequential": 28.65,
        "a": 28.65,
        "ab2": 16.23,
        "abc1": 27.084,
        "abc2": 14.664,
        "abc3": 10.524,
        "abc4": 8.454,
        "f-off": 14.664,
        "f-on": 14.664,
    }


def test_only_the_rows_about_the_loop_watch_it() -> None:
    """Sampling costs a little, so the others go without."""
    assert {name for name, row in ROWS.items() if row.samples_lag} == {"f-off", "f-on"}
