"""A webhook of jobs that have ended, from the table of jobs to a real receiver."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pipeline_ver2.config_events import JobWebhookConfig
from serving.end_news import EndNews
from serving.job_metrics import JobMetrics
from serving.jobs import DataDir, JobOptions
from serving.store import JobStore
from tests.receiver import Receiver, always, hang, receiver

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def store(data: DataDir) -> JobStore:
    """A table of jobs somebody is to be told of."""
    return JobStore(data.database_url, has_news=True)


def add(store: JobStore, job_id: str, state: Any = None) -> None:  # noqa: ANN401 - any state
    """A job that has ended in a state, or waits."""
    store.insert(job_id, "film.mp4", JobOptions(), None)
    if state is not None:
        store.end(job_id, state, "planted" if state == "failed" else None)


@asynccontextmanager
async def telling(server: Receiver, store: JobStore, metrics: JobMetrics, **settings: Any) -> AsyncIterator[None]:  # noqa: ANN401
    """Jobs are told of while the block lasts."""
    config = JobWebhookConfig.model_validate({"url": server.url, "secret": SECRET, "retry_s": 0.01, **settings})
    task = asyncio.create_task(EndNews(config, store, metrics).run())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def count(metrics: JobMetrics, name: str, **labels: str) -> float:
    """A counter."""
    return metrics.registry.get_sample_value(f"zroact_job_webhook_{name}_total", labels) or 0


async def told(metrics: JobMetrics, number: int, **labels: str) -> None:
    """Wait until so many tries came to this."""
    async with asyncio.timeout(60):
        while count(metrics, "tries", **labels) < number:  # noqa: ASYNC110 - a counter sets no event
            await asyncio.sleep(0.01)


async def test_each_ended_job_is_told_of_once(store: JobStore, metrics: JobMetrics) -> None:
    """Signed, with the job as the API shows it, under an id of its own; one that waits is not told of."""
    add(store, "a", "succeeded")
    add(store, "b", "failed")
    add(store, "c")
    add(store, "d")
    store.ask_cancel("d")
    async with receiver() as server, telling(server, store, metrics):
        await told(metrics, 3, outcome="delivered")
        store.end("c", "partial")
        await told(metrics, 4, outcome="delivered")
    posts = {post.id: post for post in server.posts}
    assert len(server.posts) == 4
    assert set(posts) == {"job_a_succeeded", "job_b_failed", "job_c_partial", "job_d_cancelled"}
    assert all(post.is_signed_with(SECRET) for post in server.posts)
    content = posts["job_b_failed"].content
    assert (content["type"], content["data"]["id"], content["data"]["error"]) == ("job.failed", "b", "planted")
    assert content["timestamp"] == store.get("b").ended_at.isoformat()  # type: ignore[union-attr]
    store.close()


async def test_a_failure_is_tried_again_under_the_same_id(store: JobStore, metrics: JobMetrics) -> None:
    """Until it is taken."""
    add(store, "a", "succeeded")

    async def two_failures(before: int) -> web.StreamResponse | None:
        return await always(500)(before) if before < 2 else None

    async with receiver(two_failures) as server, telling(server, store, metrics):
        await told(metrics, 1, outcome="delivered")
    assert [post.id for post in server.posts] == ["job_a_succeeded"] * 3
    assert count(metrics, "tries", outcome="http") == 2
    assert store.take_news(9, 0) == []
    store.close()


@pytest.mark.fault("E1")
async def test_tries_are_bounded(store: JobStore, metrics: JobMetrics, caplog: pytest.LogCaptureFixture) -> None:
    """Then it is given up, which is counted and logged, and the job may be forgotten."""
    add(store, "a", "succeeded")
    async with receiver(always(500)) as server, telling(server, store, metrics, retries=2):
        await told(metrics, 3, outcome="http")
        assert store.ended() == [] or count(metrics, "lost", reason="http") == 1
        async with asyncio.timeout(60):
            while not store.ended():  # noqa: ASYNC110 - the table sets no event
                await asyncio.sleep(0.01)
    assert len(server.posts) == 3
    assert count(metrics, "lost", reason="http") == 1
    assert "given up after 3 tries" in caplog.text
    store.close()


@pytest.mark.fault("E1")
async def test_redirects_are_refused(store: JobStore, metrics: JobMetrics) -> None:
    """One try, counted, and nobody elsewhere hears of it."""
    add(store, "a", "succeeded")
    async with receiver() as elsewhere, receiver(always(302, Location=elsewhere.url)) as server:
        async with telling(server, store, metrics):
            await told(metrics, 1, outcome="redirect")
            async with asyncio.timeout(60):
                while not store.ended():  # noqa: ASYNC110 - the table sets no event
                    await asyncio.sleep(0.01)
        assert elsewhere.posts == []
    assert (len(server.posts), count(metrics, "lost", reason="redirect")) == (1, 1)
    store.close()


async def test_a_receiver_that_hangs_is_left(store: JobStore, metrics: JobMetrics) -> None:
    """And asked again later."""
    add(store, "a", "succeeded")
    async with receiver(hang) as server, telling(server, store, metrics, timeout_s=0.1):
        await told(metrics, 2, outcome="timeout")
    assert len(server.posts) >= 2
    store.close()


async def test_nothing_is_lost_by_a_stop_while_a_post_hangs(store: JobStore, metrics: JobMetrics) -> None:
    """Who is stopped lets go at once; when its time is over another tells it, under the same id."""
    add(store, "a", "succeeded")
    async with receiver(hang) as server:
        async with telling(server, store, metrics, timeout_s=60):
            await server.until(lambda: server.posts)
        assert store.take_news(9, 60) == []
        ((record, tries),) = _later(store)
        assert (record.id, tries) == ("a", 2)
    store.close()


def _later(store: JobStore) -> list[Any]:
    """What is due once nobody holds it any more."""
    store.put_news_back("a", -1)
    return store.take_news(9, 60)


async def test_two_processes_tell_each_job_once(data: DataDir, store: JobStore, metrics: JobMetrics) -> None:
    """Whoever takes it first."""
    other = JobStore(data.database_url, has_news=True)
    for number in range(12):
        add(store, f"job{number}", "succeeded")
    async with (
        receiver() as server,
        telling(server, store, metrics),
        telling(server, other, metrics),
    ):
        await told(metrics, 12, outcome="delivered")
    assert sorted(post.id for post in server.posts) == sorted(f"job_job{number}_succeeded" for number in range(12))
    store.close()
    other.close()


def take_away(table: Path) -> None:
    """Put something in its place that is no database."""
    table.rename(table.with_name("away"))
    table.mkdir()


def bring_back(table: Path) -> None:
    """Put it back."""
    table.rmdir()
    table.with_name("away").rename(table)


async def test_a_database_that_is_away(
    data: DataDir, store: JobStore, metrics: JobMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """Is asked again."""
    add(store, "a", "succeeded")
    store.close()
    take_away(data.path / "jobs.sqlite")
    async with receiver() as server, telling(server, store, metrics):
        async with asyncio.timeout(60):
            while "jobs' webhook" not in caplog.text:  # noqa: ASYNC110 - the log sets no event
                await asyncio.sleep(0.01)
        bring_back(data.path / "jobs.sqlite")
        await told(metrics, 1, outcome="delivered")
    store.close()


def test_jobs_are_kept_until_they_are_told_of(data: DataDir, store: JobStore) -> None:
    """Retention does not take them away; without a webhook it does."""
    add(store, "a", "succeeded")
    without = JobStore(data.database_url)
    assert ([record.id for record in store.ended()], [record.id for record in without.ended()]) == ([], ["a"])
    assert without.end("a", "failed") is False
    add(without, "b", "succeeded")
    assert [record.id for record in store.ended()] == ["b"]
    store.put_news_back("a", None)
    assert [record.id for record in store.ended()] == ["a", "b"]
    store.close()
    without.close()
