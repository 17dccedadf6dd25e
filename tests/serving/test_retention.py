"""Which ended jobs are deleted."""

from __future__ import annotations

import pytest

from pipeline_ver2.config import Retention
from pipeline_ver2.errors import UnknownJob
from serving.jobs import DataDir, JobOptions
from serving.retention import enforce
from serving.store import JobStore

KEEP = Retention(age_h=None, count=None, total_gb=None)


@pytest.fixture
def ids(data: DataDir, store: JobStore) -> list[str]:
    """Three ended jobs of 1000 bytes each, oldest first, and one that runs."""
    ended = ["first", "second", "third"]
    for job_id in (*ended, "running"):
        store.insert(job_id, job_id, JobOptions(), None)
        data.folder(job_id).path.mkdir()
        (data.folder(job_id).path / "source").write_bytes(bytes(1000))
        store.start(job_id)
        if job_id != "running":
            store.end(job_id, "succeeded")
    return ended


@pytest.mark.parametrize(
    ("bounds", "gone"),
    [
        ({}, []),
        ({"count": 3}, []),
        ({"count": 2}, ["first"]),
        ({"count": 1}, ["first", "second"]),
        ({"total_gb": 3000e-9}, []),
        ({"total_gb": 2999e-9}, ["first"]),
        ({"total_gb": 1e-9}, ["first", "second", "third"]),
        ({"age_h": 1}, []),
        ({"age_h": 1e-12}, ["first", "second", "third"]),
    ],
)
def test_the_oldest_beyond_a_bound_go(
    data: DataDir, store: JobStore, ids: list[str], bounds: dict[str, float], gone: list[str]
) -> None:
    """With their files; younger ones and what runs stay."""
    assert enforce(store, data, KEEP.model_copy(update=bounds)) == gone
    for job_id in ids:
        assert data.folder(job_id).path.exists() == (job_id not in gone)
    for job_id in gone:
        with pytest.raises(UnknownJob):
            store.get(job_id)
    assert data.folder("running").path.exists()


def test_nothing_to_delete(data: DataDir, store: JobStore) -> None:
    """An empty table is no error."""
    assert enforce(store, data, Retention()) == []
