"""The Stage 1 daemon while its detector is busy: waiting, refusing, joining, shedding."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import numpy as np
import pytest

from pipeline_ver2 import wire
from pipeline_ver2.config import Config
from serving.workers.stage1_emulated import EMULATED_NOTE
from serving.workers.stage1_server import build_app
from tests.chats import picture
from tests.oip_client import findings_of, send_clips
from tests.servers import served

MakeConfig = Callable[..., Config]


@pytest.fixture
def slow_url(stage1_config: MakeConfig) -> Iterator[str]:
    """An emulated daemon that takes a second and lets one request wait."""
    config = stage1_config(engine="emulated", emulated={"service_s": 1.0}, clip_length=1, max_queue=1)
    with served(build_app(config)) as url:
        yield url


async def _queue_of(http: aiohttp.ClientSession) -> dict[str, Any]:
    async with http.get("/health") as reply:
        found: dict[str, Any] = (await reply.json())["queue"]
        return found


async def _until_queue(http: aiohttp.ClientSession, *, running: bool, waiting: int) -> None:
    async with asyncio.timeout(20):
        while await _queue_of(http) != {"running": running, "waiting": waiting, "max": 1}:
            pass


async def test_the_emulation_is_named_everywhere(slow_url: str) -> None:
    """Health, metadata and parameters all say that nothing here is a model."""
    async with aiohttp.ClientSession(slow_url) as http:
        async with http.get("/health") as reply:
            health = await reply.json()
        async with http.get("/v2/models/yowov3") as reply:
            model = await reply.json()
    assert (health["engine"], health["note"]) == ("emulated", EMULATED_NOTE)
    assert (model["platform"], model["parameters"]["engine"]) == ("emulated", "emulated")
    assert model["parameters"]["note"] == EMULATED_NOTE


async def test_a_full_queue_and_a_client_that_goes(slow_url: str) -> None:
    """One runs, one waits, the third is told 429; when the one that waits goes, its place is free at once."""
    clip = np.zeros((1, 224, 224, 3), np.uint8)
    async with aiohttp.ClientSession(slow_url) as http:
        running = asyncio.create_task(send_clips(http, clip))
        await _until_queue(http, running=True, waiting=0)
        waiting = asyncio.create_task(send_clips(http, clip))
        await _until_queue(http, running=True, waiting=1)
        refused = await send_clips(http, clip)
        assert (refused.status, refused.json()["code"]) == (429, "queue_full")
        assert int(refused.headers["Retry-After"]) >= 1
        waiting.cancel()
        await _until_queue(http, running=True, waiting=0)
        assert (await running).status == 200


@pytest.mark.fault("O2")
async def test_the_same_key_is_worked_on_once(slow_url: str) -> None:
    """A repeated request joins the running one and is replayed later, even if its first sender has gone."""
    clip, other = np.zeros((1, 224, 224, 3), np.uint8), np.ones((1, 224, 224, 3), np.uint8)
    headers = {wire.IDEMPOTENCY_HEADER: "job-1/batch-0"}
    async with aiohttp.ClientSession(slow_url) as http:
        first = asyncio.create_task(send_clips(http, clip, headers=headers))
        await _until_queue(http, running=True, waiting=0)
        second = asyncio.create_task(send_clips(http, clip, headers=headers))
        first.cancel()
        joined = await second
        replayed = await send_clips(http, clip, headers=headers)
        assert joined.status == replayed.status == 200
        assert joined.headers[wire.SERVER_TIMING_HEADER] == replayed.headers[wire.SERVER_TIMING_HEADER]
        # The same key with other pixels is other work: never somebody else's answer.
        different = await send_clips(http, other, headers=headers)
        assert findings_of(different, 1) != findings_of(replayed, 1)
        async with http.get("/metrics") as reply:
            assert 'zroact_stage1_clips_total{state="ok"} 2.0' in await reply.text()


@pytest.mark.fault("O2")
async def test_people_may_repeat_themselves_too(slow_url: str) -> None:
    """`/detect` with a key that came before with the same body is not worked on again; with another one it is."""
    headers, frame = {wire.IDEMPOTENCY_HEADER: "mine"}, base64.b64encode(picture()).decode()

    async def detect(clip_id: str) -> bytes:
        body = {"clips": [{"clip_id": clip_id, "frames": [frame]}]}
        async with http.post("/detect", json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.read()

    async with aiohttp.ClientSession(slow_url) as http:
        joined = await asyncio.gather(*(detect("a") for _ in range(3)))
        assert {await detect("a"), *joined} == {joined[0]}
        assert b'"b"' in await detect("b")
        async with http.get("/metrics") as reply:
            assert 'zroact_stage1_clips_total{state="ok"} 2.0' in await reply.text()


async def test_a_deadline_sheds_what_waits(slow_url: str) -> None:
    """A request whose deadline comes while it waits is refused for good."""
    clip = np.zeros((1, 224, 224, 3), np.uint8)
    async with aiohttp.ClientSession(slow_url) as http:
        running = asyncio.create_task(send_clips(http, clip))
        await _until_queue(http, running=True, waiting=0)
        shed = await send_clips(http, clip, headers={wire.DEADLINE_HEADER: "100"})
        assert shed.status == 503
        assert (shed.json()["code"], shed.json()["retryable"]) == ("shed_deadline", False)
        assert (await running).status == 200
