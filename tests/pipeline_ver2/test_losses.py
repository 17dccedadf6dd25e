"""What a live run let go of, counted by reason."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline_ver2.losses import Losses


def test_nothing_lost_is_nothing_told(caplog: pytest.LogCaptureFixture) -> None:
    """No counts, no line."""
    losses = Losses("cam")
    losses.add("frames", "buffer_full", 0)
    losses.flush()
    assert losses.as_dict() == {}
    assert caplog.messages == []


def test_losses_are_told_once_a_second_at_most(caplog: pytest.LogCaptureFixture) -> None:
    """The first at once, the others together when a second is over, the rest at the end; none twice."""
    now = 0.0
    losses = Losses("cam", clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        for step in range(25):
            now = step / 10
            losses.add("frames", "buffer_full", 2)
        losses.add("slots", "shed_deadline")
        losses.flush()
        losses.flush()
    assert caplog.messages == [
        "cam: lost: 2 frames (buffer_full)",
        "cam: lost: 20 frames (buffer_full)",
        "cam: lost: 20 frames (buffer_full)",
        "cam: lost: 8 frames (buffer_full), 1 slots (shed_deadline)",
    ]
    assert losses.as_dict() == {"frames": {"buffer_full": 50}, "slots": {"shed_deadline": 1}}


def test_many_threads_lose_no_count() -> None:
    """Every loss is counted, whoever tells it."""
    losses = Losses()
    with ThreadPoolExecutor(8) as threads:
        for _ in range(800):
            threads.submit(losses.add, "keyframes", "source_lost")
    assert losses.as_dict() == {"keyframes": {"source_lost": 800}}
