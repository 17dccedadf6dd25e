"""Reports as people see them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from serving.bench.bars import Bar
from serving.bench.daemons import CLIP
from serving.bench.demo import DemoFigures, Pair, build_report
from serving.bench.machine import describe_machine
from serving.bench.tables import bars_table, demo_table, seed_table


def shown(table: Table) -> str:
    """The table as text, every line on its own."""
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.fixture
def demo_report() -> dict[str, Any]:
    """Two pairs."""
    pairs = (Pair("orchestrator", 3.0, 6.0), Pair("baseline", 4.0, 5.0))
    figures = DemoFigures(pairs, {"stage1": "onnx", "stage2": "transformers"}, {"stage1": "a", "stage2": "b"})
    return build_report(describe_machine([]), CLIP, figures, [])


def test_the_seed_table_calls_the_engines_emulated(seed_report: dict[str, Any]) -> None:
    """Nobody takes the figures for those of models."""
    assert "stage1 emulated, stage2 emulated" in shown(seed_table(seed_report))


def test_the_seed_table_has_a_line_for_each_row(seed_report: dict[str, Any]) -> None:
    """Ideal, wall time, their ratio, the comparisons, and the lag where it was sampled."""
    lines = shown(seed_table(seed_report)).splitlines()
    at_two = next(line for line in lines if "A + B + C at 2" in line)
    assert [cell.strip() for cell in at_two.split("│")[2:8]] == [
        "14.664",
        "14.957",
        "1.020",
        "+46.4 %",
        "+10.5 %",
        "+48.8 %",
    ]
    assert sum("1.0 / 2.0 / 3.0 ms" in line for line in lines) == 2


def test_the_demo_table_has_a_line_for_each_pair(demo_report: dict[str, Any]) -> None:
    """Who began, both times, the ratio, and the median below."""
    text = shown(demo_table(demo_report))
    assert "stage1 onnx, stage2 transformers" in text
    assert "0.500" in text
    assert "0.800" in text
    assert "0.650" in text


def test_a_missed_bar_says_so() -> None:
    """Each bar with its value, what it must be, and whether it is."""
    lines = shown(bars_table([Bar("a", 1, "<=", 2), Bar("b", 3, "<=", 2)])).splitlines()
    assert any("a" in line and "ok" in line for line in lines)
    assert any("b" in line and "<= 2" in line and "missed" in line for line in lines)
