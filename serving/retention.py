"""Deletes ended jobs that are too old, too many or too large, the oldest first."""

from __future__ import annotations

import logging
import time

from pipeline_ver2.config import Retention
from serving.jobs import DataDir, JobRecord
from serving.store import JobStore

log = logging.getLogger(__name__)


def enforce(store: JobStore, data: DataDir, retention: Retention) -> list[str]:
    """Delete what is beyond the bounds, files first; the ids. Jobs that have not ended do not count. Blocks."""
    ended = store.ended()
    sizes = {record.id: data.folder(record.id).size() for record in ended}
    total, number = sum(sizes.values()), len(ended)
    gone: list[str] = []
    for record in ended:
        too_many = retention.count is not None and number > retention.count
        too_large = retention.total_gb is not None and total > retention.total_gb * 1e9
        if not (too_many or too_large or _is_old(record, retention)):
            break  # those behind it are younger
        data.folder(record.id).remove()
        store.delete(record.id)
        gone.append(record.id)
        number, total = number - 1, total - sizes[record.id]
    if gone:
        log.info("%d ended job(s) deleted (serving.retention)", len(gone))
    return gone


def _is_old(record: JobRecord, retention: Retention) -> bool:
    if retention.age_h is None or record.ended_at is None:
        return False
    return time.time() - record.ended_at.timestamp() > retention.age_h * 3600
