"""How a run takes what it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import load_config
from pipeline_ver2.job import Job
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.pace import Pace


def test_a_file_waits_for_the_stages() -> None:
    """No frame is dropped, no batch is cut short, nothing is too late."""
    pace = Pace.of(Job(Path("a.mp4"), Path("out")), load_config(None, {"pipeline.stage2_window": 3}, environ={}))
    assert pace == Pace(window=3, policy="WAIT", batch_wait_s=None, deadline_s=None)
    assert pace.deadline(None, 10) is None


@pytest.mark.parametrize(("limit", "window"), [(2, 4), ({"min": 1, "max": 8}, 10)])
def test_a_live_source_gives_stage_2_something_to_order(limit: Any, window: int) -> None:  # noqa: ANN401 - both kinds
    """Two more are sent than are answered at a time."""
    config = load_config(None, {"stage2.limit": limit, "stage1.batch_wait_ms": 20}, environ={})
    job = Job(Path("camera"), Path("out"), live=LiveSource("rtsp://camera", "DROP_LATEST", 3))
    assert Pace.of(job, config) == Pace(window, "DROP_LATEST", 0.02, 3)


def test_a_deadline_counts_from_the_arrival() -> None:
    """What arrived two seconds ago has three of five left."""
    deadline = Pace(window=1, deadline_s=5).deadline(arrived_s=8, now=10)
    assert deadline is not None
    assert 0 < deadline.left_s <= 3


def test_without_a_deadline_nothing_is_too_late() -> None:
    """Live sources can be run without one."""
    assert Pace(window=1).deadline(arrived_s=8, now=10) is None
