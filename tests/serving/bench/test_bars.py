"""Bars, and which of them decide."""

from __future__ import annotations

import json

import pytest

from serving.bench.bars import Bar, Op, passed


@pytest.mark.parametrize(
    ("value", "op", "ok"),
    [
        (1.0, "<", False),
        (0.99, "<", True),
        (1.0, "<=", True),
        (1.01, "<=", False),
        (1.0, ">=", True),
        (0.99, ">=", False),
        (float("nan"), "<", False),
        (float("nan"), ">=", False),
    ],
)
def test_values_against_a_target_of_one(value: float, op: Op, ok: bool) -> None:  # noqa: FBT001 - a table's column
    """Each comparison on both of its sides and on the edge; what is no number reaches nothing."""
    assert Bar("a bar", value, op, 1).ok is ok


def test_a_missed_bar_decides_and_a_missed_target_does_not() -> None:
    """Targets are reported, but only bars make a benchmark fail."""
    reached, missed = Bar("a", 1, "<=", 2), Bar("b", 3, "<=", 2)
    hoped = Bar.hoped_for("c", 3, "<=", 2)
    assert passed([reached, hoped])
    assert not passed([reached, missed])
    assert passed([])


def test_a_target_says_that_it_is_one() -> None:
    """Whoever reads the report sees from its name that it does not decide."""
    assert Bar.hoped_for("wall / ideal", 1, "<=", 1.03).name == "target: wall / ideal"


def test_the_report_holds_what_was_compared() -> None:
    """Name, value, comparison, target and outcome, as JSON; the outcome is that of the value before rounding."""
    told = json.loads(json.dumps(Bar("a", 1.00004, "<=", 1).as_dict()))
    assert told == {"name": "a", "value": 1.0, "op": "<=", "target": 1, "ok": False}
