"""Tells a webhook of every job that has ended, at least once.

That somebody is to be told is written in the same statement as the end itself, and taken back when the receiver has
said that it knows. So the news outlives the process; who starts after a kill, here or on another machine, tells it.
A receiver may get it twice, with the same `webhook-id`, which is that of the job and its state.
"""

from __future__ import annotations

import asyncio
import logging
import random

from sqlalchemy.exc import SQLAlchemyError

from pipeline_ver2.config_events import JobWebhookConfig
from pipeline_ver2.errors import DatabaseAway, SinkError
from pipeline_ver2.webhook import Webhook, message
from serving.job_metrics import JobMetrics
from serving.jobs import JobRecord
from serving.store import JobStore

log = logging.getLogger(__name__)

LOOK_S = 0.5
AT_ONCE = 4

_HOLD_S = 10.0
"""What it takes at most to write down what came of a post."""
_MAX_WAIT_S = 3600.0


class EndNews:
    """Tells of jobs as they end.

    Args:
        config: Where to.
        store: Knows of whom there is something to tell.
        metrics: Counts tries.
    """

    def __init__(self, config: JobWebhookConfig, store: JobStore, metrics: JobMetrics) -> None:
        self._config = config
        self._store = store
        self._metrics = metrics

    async def run(self) -> None:
        """Tell of them until cancelled."""
        async with Webhook(self._config) as webhook:
            while True:
                taken = await self._take()
                async with asyncio.TaskGroup() as group:
                    for record, tries in taken:
                        group.create_task(self._tell(webhook, record, tries))
                if not taken:
                    await asyncio.sleep(LOOK_S)

    async def _take(self) -> list[tuple[JobRecord, int]]:
        try:
            return await asyncio.to_thread(self._store.take_news, AT_ONCE, self._config.timeout_s + _HOLD_S)
        except (DatabaseAway, SQLAlchemyError) as error:
            log.warning("jobs' webhook: %s", error)
            return []

    async def _tell(self, webhook: Webhook, record: JobRecord, tries: int) -> None:
        wait_s: float | None = None
        try:
            body = message(f"job.{record.state}", record.ended_at or record.created_at, record)
            await webhook.send(message_id(record), body)
            self._metrics.told("delivered")
        except SinkError as error:
            self._metrics.told(error.reason)
            wait_s = self._next_try(record, tries, error)
        try:
            await asyncio.to_thread(self._store.put_news_back, record.id, wait_s)
        except (DatabaseAway, SQLAlchemyError) as error:  # it is taken again when its time is over
            log.warning("jobs' webhook: job %s: %s", record.id, error)

    def _next_try(self, record: JobRecord, tries: int, error: SinkError) -> float | None:
        """Seconds until the next try; None if there is none."""
        if not error.retryable or tries > self._config.retries:
            self._metrics.gave_up(error.reason)
            log.error("jobs' webhook: job %s: given up after %d tries: %s", record.id, tries, error)
            return None
        wait_s = min(max(self._config.retry_s * 2.0 ** min(tries - 1, 20), error.retry_after_s), _MAX_WAIT_S)
        wait_s *= random.uniform(0.8, 1.2)  # noqa: S311 - so that many do not come at once
        log.warning("jobs' webhook: job %s: %s; again in %.3g s", record.id, error, wait_s)
        return wait_s


def message_id(record: JobRecord) -> str:
    """The same for a job and the state it has ended in."""
    return f"job_{record.id}_{record.state}"
