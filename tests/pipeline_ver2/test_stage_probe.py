"""Who answers at a stage's address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pipeline_ver2 import stage_probe
from pipeline_ver2.config import Config
from pipeline_ver2.errors import ConfigError
from pipeline_ver2.stage_probe import Finding, StageName, address_of, find_stage

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def config_at(stage: StageName, url: str) -> Config:
    """A configuration that looks for a stage at a URL."""
    return Config.model_validate({stage: {"url": url}})


@asynccontextmanager
async def web_server(statuses: dict[str, int]) -> AsyncIterator[str]:
    """A web server that answers GET with the statuses given, 404 elsewhere; gives its URL."""
    app = web.Application()
    for path, status in statuses.items():

        async def answer(_: web.Request, status: int = status) -> web.Response:
            return web.Response(status=status)

        app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def tcp_server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server that takes connections and does with them what `talk` does; gives its URL."""
    talks: set[asyncio.Task[None]] = set()

    async def talk_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await talk(reader, writer)
        writer.close()
        await writer.wait_closed()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.create_task(talk_and_close(reader, writer)))

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*talks, return_exceptions=True)


async def found_at(stage: StageName, url: str) -> Finding:
    """Ask once."""
    async with aiohttp.ClientSession() as session:
        return await find_stage(session, address_of(config_at(stage, url), stage))


@pytest.mark.parametrize(
    ("stage", "statuses", "expected"),
    [
        ("stage1", {"/readyz": 200, "/v2/models/yowov3": 200}, "ready"),
        ("stage2", {"/readyz": 200, "/v1/models": 200}, "ready"),
        ("stage1", {"/v2/health/ready": 200}, "ready"),
        ("stage2", {"/health": 200}, "ready"),
        ("stage2", {"/v1/models": 200}, "ready"),
        ("stage1", {"/readyz": 503, "/v2/models/yowov3": 503}, "starting"),
        ("stage2", {"/health": 503}, "starting"),
        ("stage1", {"/v2/health/ready": 400}, "starting"),
        # Triton: 400 for paths it does not know, and until its model is loaded
        ("stage1", {"/readyz": 400, "/v2/health/ready": 400}, "starting"),
        ("stage1", {"/readyz": 400, "/v2/health/ready": 200, "/v2/models/yowov3/ready": 400}, "starting"),
        ("stage1", {"/readyz": 400, "/v2/health/ready": 200, "/v2/models/yowov3/ready": 200}, "ready"),
        ("stage1", {"/readyz": 200, "/v1/models": 200}, "foreign"),
        ("stage2", {"/readyz": 200, "/v2/models/yowov3": 200}, "foreign"),
        ("stage1", {"/": 200}, "foreign"),
        ("stage2", {}, "foreign"),
    ],
)
async def test_statuses_say_what_is_there(stage: StageName, statuses: dict[str, int], expected: str) -> None:
    """Our daemons, stand-ins, the other stage and unrelated web servers are told apart by their answers."""
    async with web_server(statuses) as url:
        assert (await found_at(stage, url)).state == expected


async def test_nobody_listens(free_port: int) -> None:
    """A refused connection is an absent stage, and the finding says why."""
    found = await found_at("stage1", f"http://127.0.0.1:{free_port}")
    assert found.state == "absent"
    assert "refused" in found.detail.lower()


async def test_name_that_does_not_exist() -> None:
    """A host name nobody knows is an absent stage too."""
    assert (await found_at("stage2", "http://nobody.invalid:8002")).state == "absent"


async def test_something_that_speaks_no_http() -> None:
    """A banner of another protocol is no stage that is starting."""

    async def banner(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()

    async with tcp_server(banner) as url:
        found = await found_at("stage1", url)
    assert found.state == "foreign"
    assert "HTTP" in found.detail


async def test_something_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that stays silent, even on being alive, is taken for something else, within a bound."""
    monkeypatch.setattr(stage_probe, "_ASK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(stage_probe, "_ALIVE_TIMEOUT_S", 0.1)

    async def silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with tcp_server(silence) as url:
        assert (await found_at("stage2", url)).state == "foreign"


async def test_slow_readiness_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage whose readiness answer takes too long, but which is alive, is starting."""
    monkeypatch.setattr(stage_probe, "_ASK_TIMEOUT_S", 0.1)
    released = asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        await released.wait()
        return web.Response()

    async def alive(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/readyz", slow)
    app.router.add_get("/livez", alive)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found = await found_at("stage1", f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        released.set()
        await runner.cleanup()
    assert found.state == "starting"


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8001", True),
        ("http://localhost:8001", True),
        ("http://[::1]:8001", True),
        ("http://0.0.0.0:8001", True),
        ("https://127.0.0.1:8001", False),
        ("http://192.0.2.7:8001", False),
        ("http://gpu-box:8001", False),
    ],
)
def test_only_plain_loopback_is_ours_to_start(url: str, *, local: bool) -> None:
    """A daemon started here would only be found at plain HTTP on this machine."""
    assert address_of(config_at("stage1", url), "stage1").is_local is local


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"stage1": {"port": 0}}, "stage1.port"),
        ({"stage1": {"url": "127.0.0.1:8001"}}, "stage1.url"),
        ({"stage1": {"url": "http://127.0.0.1:99999"}}, "stage1.url"),
        ({"stage1": {"url": "http://:8001"}}, "stage1.url"),
        ({"stage1": {"url": "ftp://127.0.0.1/x"}}, "stage1.url"),
    ],
)
def test_unusable_addresses_name_their_key(content: dict[str, Any], key: str) -> None:
    """Port 0 and URLs that are none stop the start and name the key."""
    with pytest.raises(ConfigError, match=key):
        address_of(Config.model_validate(content), "stage1")
