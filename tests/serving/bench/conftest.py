"""Figures as a quiet machine would give them, and a report made of them."""

from __future__ import annotations

from typing import Any

import pytest

from serving.bench.daemons import CLIP
from serving.bench.ideal import Workload
from serving.bench.machine import describe_machine
from serving.bench.rows import ROWS
from serving.bench.seed import RowFigures, bars_of, build_report
from tests.serving.bench.figures import figures_of


@pytest.fixture
def quiet() -> list[RowFigures]:
    """Every row at 1.02 times its ideal."""
    return [figures_of(name, 1.02 * row.ideal_s(Workload())) for name, row in ROWS.items()]


@pytest.fixture
def seed_report(quiet: list[RowFigures]) -> dict[str, Any]:
    """The report of a quiet machine."""
    return build_report(describe_machine(["numpy"]), CLIP, Workload(), quiet, bars_of(quiet))
