"""The webhook of jobs that have ended, across the death of the server."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from aiohttp import web

from pipeline_ver2.config_events import JobWebhookConfig
from tests.receiver import receiver
from tests.services.job_server import PATIENCE_S, Server

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
