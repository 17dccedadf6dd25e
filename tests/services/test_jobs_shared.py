"""A queue that several processes share, on a real PostgreSQL server where one is installed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiohttp import web

from pipeline_ver2.wire import IDEMPOTENCY_HEADER
from serving.jobs import DataDir, JobOptions
from serving.store import JobStore
from tests.services.job_server import PATIENCE_S, Server
from tests.services.postgres import postgres
from tests.serving.conftest import enter
from tests.stand_ins import stand_ins

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def database_url(free_port: int) -> Iterator[str]:
    """A fresh database of a PostgreSQL server that ends with the test."""
    with postgres(free_port) as server:
        yield server.url


def test_the_table_on_postgresql(database_url: str) -> None:
    """Made by several processes at once, it is one table; pages, keys, starts and cancels are as on SQLite."""
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(JobStore, [database_url] * 4))
    first, second, *_ = stores
    assert {store.insert(f"job-{number}", "a", JobOptions(), "key").id for number, store in enumerate(stores)} == {
        "job-0"
    }
    second.insert("b", "b", JobOptions(gate="all"), None)
    page = first.page(state=None, limit=1, before=None)
    behind = first.page(state="queued", limit=9, before=(page[0].created_at.timestamp(), page[0].id))
    assert [record.id for record in (*page, *behind)] == ["b", "job-0"]
    assert first.start("b") is not None
    assert second.ask_cancel("b").state == "running"
    assert first.start("b") is None
    assert first.ask_cancel("job-0").state == "cancelled"
    assert second.counts() == {"running": 1, "cancelled": 1}
    for store in stores:
        store.close()


async def test_two_workers_share_the_queue(
    tmp_path: Path, three_free_ports: tuple[int, int, int], clip: Path, database_url: str
) -> None:
    """Two jobs run at the same time, each in one worker and once."""
    server, data, store = Server(tmp_path, three_free_ports), DataDir(tmp_path / "data"), JobStore(database_url)
    data.prepare()
    for job_id in ("a", "b"):
        enter(data, store, job_id, clip, annotate=False)
    running, both = set[str](), asyncio.Event()

    async def wait_for_both(request: web.Request, _key: str, _time: int) -> None:
        running.add(request.headers[IDEMPOTENCY_HEADER].split("/")[0])
        if len(running) == 2:
            both.set()
        await both.wait()

    async with stand_ins() as stages:
        stages.stage2.rule = wait_for_both
        content = {
            "stage1": {"url": stages.stage1.url},
            "stage2": {"url": stages.stage2.url, "timeout_s": PATIENCE_S},
            "serving": {"database_url": database_url},
        }
        (tmp_path / "config.json").write_text(json.dumps(content))
        with ExitStack() as workers:
            for _ in range(2):
                await asyncio.to_thread(workers.enter_context, server.run("worker"))
            async with asyncio.timeout(PATIENCE_S):
                while store.counts() != {"succeeded": 2}:  # noqa: ASYNC110 - other processes run them
                    await asyncio.sleep(0.1)
    assert [store.get(job_id).attempts for job_id in ("a", "b")] == [1, 1]
    store.close()
