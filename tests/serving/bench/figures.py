"""Figures as a machine of a test's choice would give them."""

from __future__ import annotations

from serving.bench.ideal import Workload
from serving.bench.rows import ROWS
from serving.bench.seed import RowFigures, RunFigures


def figures_of(name: str, *walls_s: float) -> RowFigures:
    """A row that took these times."""
    row = ROWS[name]
    lag = {"p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0} if row.samples_lag else {}
    runs = tuple(RunFigures(wall_s, 0.3, 1.9, 2.4, 0.2, lag) for wall_s in walls_s)
    return RowFigures(row, row.ideal_s(Workload()), runs)
