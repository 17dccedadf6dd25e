"""What the job server tells Prometheus."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pipeline_ver2.results import Results
from serving.jobs import JobRecord, JobState
from serving.store import JobStore
from serving.workers.daemon import request_counter

_STEPS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
_CODE = re.compile(r"[a-z][a-z0-9_]{0,40}")
_WAITS_S = (0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200)


class JobMetrics:
    """Counters of this process, and the state of the table and the disk when they are asked for."""

    def __init__(self, registry: CollectorRegistry, store: JobStore, data_dir: Path) -> None:
        self.registry = registry
        self._ended = Counter("zroact_jobs_ended", "Jobs this process ended, by state.", ["state"], registry=registry)
        self._wait = Histogram(
            "zroact_job_queue_wait_seconds", "From the request to the first start.", buckets=_WAITS_S, registry=registry
        )
        self.upload_bytes = Counter("zroact_upload_bytes", "Bytes of videos sent or fetched.", registry=registry)
        self._news = Counter(
            "zroact_job_webhook_tries", "Posts about ended jobs, by what came of them.", ["outcome"], registry=registry
        )
        self._news_lost = Counter(
            "zroact_job_webhook_lost",
            "Ended jobs nobody was told of, by reason.",
            ["reason"],
            registry=registry,
        )
        self.requests = request_counter(registry)
        self._slots = Counter(
            "zroact_slots", "Slots of ended jobs, by state and reason.", ["state", "reason"], registry=registry
        )
        self._slot_waits = Histogram(
            "zroact_slot_wait_seconds", "Waits of slots for Stage 2's engine.", buckets=_STEPS_S, registry=registry
        )
        self._slot_times = Histogram(
            "zroact_slot_seconds", "From asking about a slot to its answer.", buckets=_STEPS_S, registry=registry
        )
        self._busy = Counter("zroact_job_busy_seconds", "Time jobs were at each step.", ["step"], registry=registry)
        registry.register(_Table(store, data_dir))

    def started(self, record: JobRecord) -> None:
        """A job was started; its wait counts once."""
        if record.attempts == 1:
            self._wait.observe(max(0.0, time.time() - record.created_at.timestamp()))

    def ended(self, state: JobState, results: Results | None = None) -> None:
        """A job has ended, with these results if there are any."""
        self._ended.labels(state).inc()
        if results is None:
            return
        for slot in results.slots:
            self._slots.labels(slot.state, _kind(slot.reason)).inc()
            if slot.queue_wait_s is not None:
                self._slot_waits.observe(slot.queue_wait_s)
            if slot.duration_s is not None:
                self._slot_times.observe(slot.duration_s)
        for step, busy_s in results.timing.busy_s.items():
            self._busy.labels(step).inc(busy_s)

    def told(self, outcome: str) -> None:
        """The webhook was tried."""
        self._news.labels(outcome).inc()

    def gave_up(self, reason: str) -> None:
        """The webhook is not tried again for a job."""
        self._news_lost.labels(reason).inc()


def _kind(reason: str | None) -> str:
    """The code a reason begins with; what follows it differs from slot to slot."""
    code = (reason or "").partition(":")[0]
    return code if not code or _CODE.fullmatch(code) else "other"


class _Table(Collector):
    """Jobs by state, and room on the disk, looked up when Prometheus asks."""

    def __init__(self, store: JobStore, data_dir: Path) -> None:
        self._store = store
        self._data_dir = data_dir

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The current values; blocks."""
        counts = self._store.counts()
        jobs = GaugeMetricFamily("zroact_jobs", "Jobs by state.", labels=["state"])
        for state in get_args(JobState):
            jobs.add_metric([state], counts.get(state, 0))
        yield jobs
        disk = shutil.disk_usage(self._data_dir)
        yield GaugeMetricFamily("zroact_disk_free_bytes", "Room left where jobs are kept.", value=disk.free)
        yield GaugeMetricFamily("zroact_disk_bytes", "Size of the disk where jobs are kept.", value=disk.total)

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing, so that registering looks nothing up."""
        return []
