"""The webhook of jobs that have ended, across the death of the server."""

from __future__ import annotations

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiohttp import web

from pipeline_ver2.config_events import JobWebhookConfig
from serving.jobs import JobOptions
from serving.store import JobStore
from tests.receiver import receiver
from tests.services.job_server import PATIENCE_S, Server
from tests.services.postgres import postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@pytest.mark.fault("O5")
async def test_the_end_of_a_job_is_told_though_the_server_is_killed(
    tmp_path: Path, three_free_ports: tuple[int, int, int], clip: Path
) -> None:
    """kill -9 while the receiver hangs: after a restart it is told again, under the same id, and then no more."""
    known = asyncio.Event()

    async def first_hangs(before: int) -> web.StreamResponse | None:
        if before == 0:
            await asyncio.Event().wait()
        known.set()
        return None

    async with receiver(first_hangs) as hook:
        settings = JobWebhookConfig(url=hook.url, secret=SECRET, timeout_s=2, retry_s=0.1)
        server = Server(tmp_path, three_free_ports, serving={"webhook": settings.model_dump()})
        with server.run() as process:
            job_id = await server.post(clip)
            await hook.until(lambda: hook.posts)
            process.kill()
            process.wait()
        with server.run():
            await asyncio.wait_for(known.wait(), PATIENCE_S)
            shown = await server.get(f"/jobs/{job_id}")
            listed = await server.get("/jobs")
    assert [post.id for post in hook.posts] == [f"job_{job_id}_succeeded"] * 2
    last = hook.posts[-1]
    assert last.is_signed_with(SECRET)
    assert {key: shown[key] for key in last.content["data"]} == last.content["data"]
    assert SECRET not in str((shown, listed)) + (tmp_path / "up.log").read_text()


def test_news_is_taken_once_on_postgresql(free_port: int) -> None:
    """Several processes that share a database look for news at the same time."""
    with postgres(free_port) as server, ThreadPoolExecutor(4) as pool:
        stores = [JobStore(server.url, has_news=True) for _ in range(4)]
        for number in range(20):
            stores[0].insert(f"job{number}", "film.mp4", JobOptions(), None)
            assert stores[0].end(f"job{number}", "succeeded")
        taken: list[tuple[str, int]] = []
        while found := [one for some in pool.map(lambda store: store.take_news(3, 600), stores) for one in some]:
            taken += [(record.id, tries) for record, tries in found]
        assert sorted(taken) == sorted((f"job{number}", 1) for number in range(20))
        stores[1].put_news_back("job7", None)
        stores[1].put_news_back("job8", -1)
        assert [(record.id, tries) for record, tries in stores[2].take_news(3, 600)] == [("job8", 2)]
        assert [record.id for record in stores[3].ended()] == ["job7"]
        for store in stores:
            store.close()
