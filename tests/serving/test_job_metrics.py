"""What the job server counts."""

from __future__ import annotations

from prometheus_client import generate_latest

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
    assert float(text.partition("\nzroact_disk_free_bytes ")[2].split("\n")[0]) > 0
