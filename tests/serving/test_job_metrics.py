"""What the job server counts."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import generate_latest

from pipeline_ver2.main import ExtractionReport, Span, probe_video
from pipeline_ver2.report import build_results
from pipeline_ver2.results import Records, SlotRecord, SlotState
from serving.job_metrics import JobMetrics
from serving.jobs import JobOptions
from serving.store import JobStore


def test_a_job_waits_once(metrics: JobMetrics, store: JobStore) -> None:
    """A second attempt is no second wait."""
    store.insert("a", "a.mp4", JobOptions(), None)
    for _ in range(2):
        record = store.start("a")
        assert record is not None
        metrics.started(record)
    assert metrics.registry.get_sample_value("zroact_job_queue_wait_seconds_count") == 1


def slot(index: int, state: SlotState, reason: str | None = None) -> SlotRecord:
    """A slot that waited a quarter of a second for its answer, which took two."""
    waited = {"queue_wait_s": 0.25, "duration_s": 2.0} if state == "ok" else {}
    return SlotRecord(index=index, key_indices=(1,), start_s=0, end_s=1, state=state, reason=reason, **waited)


def test_what_became_of_slots(metrics: JobMetrics, clip: Path, tmp_path: Path) -> None:
    """By state and by the code of the reason; whatever else a reason says makes no series of its own."""
    slots = (
        slot(0, "ok"),
        slot(1, "ok"),
        slot(2, "failed", "engine_failed: at 12:30"),
        slot(3, "failed", "engine_failed: at 12:31"),
        slot(4, "skipped", "gate: no detections"),
        slot(5, "dropped", "What a mess"),
    )
    results = build_results(
        source=clip,
        video=probe_video(clip),
        extraction=ExtractionReport(),
        models={},
        records=Records(slots={each.index: each for each in slots}),
        batches=0,
        spans=[Span("decode", 0, 1.5, {})],
        wall_s=3,
    )
    metrics.ended("partial", results)
    metrics.ended("failed", None)
    value = metrics.registry.get_sample_value
    for state, reason, number in (
        ("ok", "", 2),
        ("failed", "engine_failed", 2),
        ("skipped", "gate", 1),
        ("dropped", "other", 1),
    ):
        assert value("zroact_slots_total", {"state": state, "reason": reason}) == number
    assert value("zroact_slot_wait_seconds_sum") == 0.5
    assert value("zroact_slot_seconds_sum") == 4
    assert value("zroact_job_busy_seconds_total", {"step": "decode"}) == 1.5


def test_the_state_of_the_table(metrics: JobMetrics, store: JobStore) -> None:
    """Every state has its number, those without jobs too; ends are counted by state."""
    for job_id, state in (("a", None), ("b", "failed"), ("c", "failed")):
        store.insert(job_id, job_id, JobOptions(), None)
        if state is not None:
            store.end(job_id, "failed")
            metrics.ended("failed")
    text = generate_latest(metrics.registry).decode()
    states = ("queued", "running", "succeeded", "partial", "failed", "cancelled")
    found = [line for line in text.splitlines() if line.startswith("zroact_jobs{")]
    assert found == [
        f'zroact_jobs{{state="{state}"}} {number}.0' for state, number in zip(states, (1, 0, 0, 0, 2, 0), strict=True)
    ]
    assert 'zroact_jobs_ended_total{state="failed"} 2.0' in text
    free, size = (float(text.partition(f"\nzroact_disk_{name} ")[2].split("\n")[0]) for name in ("free_bytes", "bytes"))
    assert 0 < free < size
