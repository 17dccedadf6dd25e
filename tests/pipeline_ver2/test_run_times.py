"""What a run writes down of its times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.prompts import SlotImage
from pipeline_ver2.report import END_TO_END
from pipeline_ver2.results import KeyframeRecord, SlotRecord, SlotState
from pipeline_ver2.run_times import RunTimes
from pipeline_ver2.stage_http import StageTimes
from pipeline_ver2.tracker import ReadySlot


def slot(arrived_s: float | None) -> ReadySlot:
    """A slot of one keyframe that arrived then."""
    return ReadySlot(4, (SlotImage(b"", 0),), (KeyframeRecord(key_index=11, time_s=0, state="ok"),), arrived_s)


def record(state: SlotState) -> SlotRecord:
    """Its record."""
    return SlotRecord(index=4, key_indices=(11,), start_s=0, end_s=0, state=state)


@pytest.mark.parametrize(("run_s", "waited"), [(None, 0), (0.5, 1.5), (9, 0)])
def test_a_request_is_waiting_and_work(run_s: float | None, waited: float) -> None:
    """By the stage's own word where it gave one that can be true."""
    times = RunTimes(TimingRecorder())
    times.add_request("stage2", StageTimes(2, None, run_s, "span"), slot=3)
    wait, run = times.recorder.spans
    assert (wait.name, run.name) == ("stage2_wait", "stage2_run")
    assert wait.end_s - wait.start_s == pytest.approx(waited)
    assert run.attributes == {"slot": 3, "span_id": "span"}


def test_a_slot_of_a_file_has_no_latency() -> None:
    """Its record stays as it is."""
    times = RunTimes(TimingRecorder())
    assert times.stamp(record("ok"), slot(None)) == record("ok")
    assert times.latencies.summary() is None


def test_an_answer_to_a_live_slot_is_so_late() -> None:
    """From the arrival of its last frame until now; both ends are told."""
    times = RunTimes(TimingRecorder())
    stamped = times.stamp(record("ok"), slot(times.recorder.now() - 2))
    assert stamped.latency_s == pytest.approx(2, abs=0.5)
    assert stamped.arrived_at is not None
    assert 1.5 < (datetime.now(UTC) - stamped.arrived_at).total_seconds() < 30
    (span,) = times.recorder.spans
    assert (span.name, span.attributes) == (END_TO_END, {"slot": 4})


@pytest.mark.parametrize("state", ["shed", "failed", "dropped"])
def test_what_was_not_answered_has_no_latency(state: SlotState) -> None:
    """But the time at which it arrived."""
    times = RunTimes(TimingRecorder())
    stamped = times.stamp(record(state), slot(times.recorder.now()))
    assert stamped.latency_s is None
    assert stamped.arrived_at is not None
    assert times.latencies.summary() is None
