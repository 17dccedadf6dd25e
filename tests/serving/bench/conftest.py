"""Figures as a quiet machine would give them, and a report made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import Config, Stage1Config
from serving.bench.daemons import CLIP, free_ports, paths_in
from serving.bench.ideal import Workload
from serving.bench.machine import describe_machine
from serving.bench.rows import ROWS
from serving.bench.seed import RowFigures, bars_of, build_report
from tests.serving.bench.figures import figures_of
from tests.tiny_detector import CLIP_LENGTH, write_detector


@pytest.fixture
def quiet() -> list[RowFigures]:
    """Every row at 1.02 times its ideal."""
    return [figures_of(name, 1.02 * row.ideal_s(Workload())) for name, row in ROWS.items()]


@pytest.fixture
def seed_report(quiet: list[RowFigures]) -> dict[str, Any]:
    """The report of a quiet machine."""
    return build_report(describe_machine(["numpy"]), CLIP, Workload(), quiet, bars_of(quiet))


@pytest.fixture
def tiny_stage1(tmp_path: Path) -> Config:
    """A detector daemon with the detector whose answers can be worked out by hand, on a free port."""
    model = write_detector(tmp_path / "tiny.onnx")
    (port,) = free_ports(1)
    stage1 = Stage1Config(port=port, model_path=model, clip_length=CLIP_LENGTH, threads=1)
    return Config(paths=paths_in(tmp_path), stage1=stage1)
