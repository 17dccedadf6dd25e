"""The remote engine, and the daemon in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import openai
import pytest

from pipeline_ver2.errors import BadReply, ConfigError, EngineFailed, StageUnreachable
from serving.workers.chat import Chat, parse_chat
from serving.workers.stage2_choice import build_engine
from serving.workers.stage2_engine import Watch
from serving.workers.stage2_remote import RemoteEngine
from serving.workers.stage2_server import build_app
from tests.chats import chat_body, picture
from tests.openai_upstream import COMPLETION, Upstream, chunk, drop, hang, streaming, upstream
from tests.servers import served
from tests.stage2 import stage2_config


@asynccontextmanager
async def remote(folder: Path, url: str, **stage2: object) -> AsyncIterator[RemoteEngine]:
    """The engine, started."""
    engine = build_engine(stage2_config(folder, engine="remote", remote_url=url, **stage2).stage2)
    assert isinstance(engine, RemoteEngine)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def chat(**fields: object) -> Chat:
    """A checked chat with a picture."""
    return parse_chat({**chat_body(picture(), model="first"), **fields}, default_max_tokens=9)


async def test_a_chat_is_passed_on_whole(tmp_path: Path) -> None:
    """Pictures, fields this server does not know, a bound; and the reply comes back as it is."""
    async with upstream() as server, remote(tmp_path, server.url) as engine:
        assert await engine.complete(chat(top_k=5), Watch()) == COMPLETION
        assert server.bodies[0]["top_k"] == 5
        assert server.bodies[0]["max_tokens"] == 9
        assert server.bodies[0]["messages"] == chat_body(picture())["messages"]
        assert engine.alive_at is not None


@pytest.mark.fault("B6")
async def test_a_lost_send_voids_the_signs_of_life(tmp_path: Path) -> None:
    """Whole or streamed: told to the metrics, and readiness asks anew."""
    async with upstream() as server, remote(tmp_path, server.url) as engine:
        events: list[str] = []
        engine.on_event = events.append
        await engine.complete(chat(), Watch())
        server.answer = drop
        with pytest.raises(EngineFailed):
            await engine.complete(chat(), Watch())
        assert engine.alive_at is None
        server.answer = streaming(chunk("a"))
        stream = engine.stream(chat(stream=True), Watch())
        await anext(stream)
        assert engine.alive_at is not None
        with pytest.raises(EngineFailed):
            await anext(stream)
        assert (engine.alive_at, events) == (None, ["failure", "failure"])
        assert len(server.bodies) == 3


@pytest.mark.fault("B8")
async def test_a_cancelled_call_closes_the_connection(tmp_path: Path) -> None:
    """The server learns that nobody waits, and stops generating."""
    async with upstream(hang) as server, remote(tmp_path, server.url) as engine:
        call = asyncio.create_task(engine.complete(chat(), Watch()))
        await until_seen(server)
        call.cancel()
        await asyncio.wait_for(server.gone.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await call


async def until_seen(server: Upstream) -> None:
    """Wait for the first chat."""
    while not server.bodies:  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.005)


async def test_before_the_start_there_is_nothing_to_send_to(tmp_path: Path) -> None:
    """Waiting, not a failure."""
    engine = RemoteEngine(stage2_config(tmp_path, engine="remote", remote_url="http://127.0.0.1:1").stage2)
    with pytest.raises(StageUnreachable):
        await engine.complete(chat(), Watch())


async def test_the_model_is_the_configured_one_or_the_first_listed(tmp_path: Path) -> None:
    """And others are refused by the daemon itself."""
    async with upstream() as server:
        config = stage2_config(tmp_path, engine="remote", remote_url=server.url)
        with served(build_app(config), until_ready=False) as url:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                assert [model.id async for model in client.models.list()] == ["first"]
                said = await client.chat.completions.create(
                    model="first", messages=[{"role": "user", "content": "Hello"}]
                )
                assert said.choices[0].message.content == "Hi"
                with pytest.raises(openai.NotFoundError):
                    await client.chat.completions.create(model="second", messages=[{"role": "user", "content": "a"}])
            async with aiohttp.ClientSession() as http, http.get(f"{url}/health") as response:
                assert (await response.json())["remote_url"] == server.url
        async with remote(tmp_path, server.url, model="second") as engine:
            assert await engine.served_model() == "second"


async def test_a_server_that_lists_no_model_is_no_use(tmp_path: Path) -> None:
    """Unless the model is configured."""
    async with upstream() as server, remote(tmp_path, server.url) as engine:
        server.model_ids = []
        with pytest.raises(BadReply, match="lists no model"):
            await engine.served_model()


def test_a_remote_engine_needs_its_url(tmp_path: Path) -> None:
    """The message names the key."""
    with pytest.raises(ConfigError, match="remote_url"):
        stage2_config(tmp_path, engine="remote")
