"""The remote engine against small servers that speak OpenAI, well and badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from pipeline_ver2 import errors
from pipeline_ver2.errors import ConfigError, EngineFailed, StageTimeout, StageUnreachable, ZroactError
from serving.workers.chat import Chat, parse_chat
from serving.workers.stage2_engine import Watch, build_engine
from serving.workers.stage2_readiness import Readiness
from serving.workers.stage2_remote import RemoteEngine
from serving.workers.stage2_server import build_app
from tests.chats import chat_body, picture
from tests.servers import served
from tests.stage2 import stage2_config

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
COMPLETION = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}


class Upstream:
    """A server that answers chats as told, and keeps their bodies."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer
        self.has_health = True
        self.bodies: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.url = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Keep the body, answer."""
        self.bodies.append(await request.json())
        try:
            return web.json_response(COMPLETION) if self.answer is None else await self.answer(request)
        except asyncio.CancelledError:
            self.gone.set()
            raise

    async def health(self, _request: web.Request) -> web.Response:
        """Well, or no such page."""
        return web.Response(status=200 if self.has_health else 404)

    async def models(self, _request: web.Request) -> web.Response:
        """Two models."""
        return web.json_response({"object": "list", "data": [{"id": "first"}, {"id": "second"}]})


@asynccontextmanager
async def upstream(answer: Answer | None = None) -> AsyncIterator[Upstream]:
    """The server, listening."""
    made = Upstream(answer)
    app = web.Application(client_max_size=1 << 26)
    app.add_routes(
        [
            web.post("/v1/chat/completions", made.chat),
            web.get("/health", made.health),
            web.get("/v1/models", made.models),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


@asynccontextmanager
async def remote(folder: Path, url: str, **stage2: object) -> AsyncIterator[RemoteEngine]:
    """The engine, started."""
    config = stage2_config(folder, engine="remote", remote_url=url, **stage2)
    engine = build_engine(config.stage2)
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
    async with upstream() as server, remote(tmp_path, f"{server.url}/v1/") as engine:
        completion = await engine.complete(chat(top_k=5), Watch())
        assert completion == COMPLETION
        assert server.bodies[0]["top_k"] == 5
        assert server.bodies[0]["max_tokens"] == 9
        assert server.bodies[0]["messages"] == chat_body(picture())["messages"]


async def sse(request: web.Request, *events: str) -> web.StreamResponse:
    """Answer with these events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(f"data: {event}\n\n".encode())
    return response


def chunk(text: str) -> str:
    """One chunk, as text."""
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


async def test_a_stream_is_passed_on(tmp_path: Path) -> None:
    """Chunk by chunk, to its end."""
    events = (chunk("a"), chunk("b"), "[DONE]")
    async with upstream(lambda request: sse(request, *events)) as server, remote(tmp_path, server.url) as engine:
        chunks = [each async for each in engine.stream(chat(stream=True), Watch())]
    assert [each["choices"][0]["delta"]["content"] for each in chunks] == ["a", "b"]


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([chunk("a")], EngineFailed),
        ([chunk("a"), '{"error": {"message": "it broke", "code": 500}}'], EngineFailed),
        ([chunk("a"), "{"], errors.BadReply),
    ],
    ids=["cut off", "error event", "nonsense"],
)
async def test_a_stream_that_breaks_off_is_an_error(tmp_path: Path, events: list[str], kind: type[ZroactError]) -> None:
    """What came before it is passed on."""
    async with upstream(lambda request: sse(request, *events)) as server, remote(tmp_path, server.url) as engine:
        stream = engine.stream(chat(stream=True), Watch())
        assert (await anext(stream))["choices"][0]["delta"]["content"] == "a"
        with pytest.raises(kind):
            await anext(stream)


def replying(status: int, body: object, **headers: str) -> Answer:
    """A server that always says this."""

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers=headers)

    return answer


def error(code: object, message: str = "because") -> dict[str, Any]:
    """An error body."""
    return {"error": {"code": code, "message": message}}


@pytest.mark.fault("B6", "B7")
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (replying(400, error(400)), errors.RequestError),
        (replying(401, error("invalid_api_key")), errors.StageError),
        (replying(404, error("model_not_found")), errors.UnknownModel),
        (replying(413, error(None)), errors.BodyTooLarge),
        (replying(422, {"detail": "because"}), errors.RequestError),
        (replying(429, error("queue_full")), errors.QueueFull),
        (replying(500, error("internal")), errors.EngineFailed),
        (replying(502, "because"), errors.EngineFailed),
        (replying(503, error(None)), errors.StageUnreachable),
        (replying(503, error("engine_failed")), errors.EngineFailed),
        (replying(503, error("shed_deadline")), errors.DeadlineShed),
        (replying(504, error("stage_timeout")), errors.StageTimeout),
        (replying(302, error(None), Location="http://127.0.0.1:1/"), errors.BadReply),
        (replying(200, ["because"]), errors.BadReply),
    ],
)
async def test_every_reply_has_its_error_and_nothing_is_sent_again(
    tmp_path: Path, answer: Answer, kind: type[ZroactError]
) -> None:
    """The server's own words are in it; the server saw the chat once."""
    async with upstream(answer) as server, remote(tmp_path, server.url) as engine:
        with pytest.raises(kind, match=r"because|not a JSON object") as caught:
            await engine.complete(chat(), Watch())
        assert type(caught.value) is kind
        assert len(server.bodies) == 1


async def test_retry_after_is_passed_on(tmp_path: Path) -> None:
    """The caller waits as long as the server asked for; nonsense is replaced."""
    for told, expected in (("7", 7), ("soon", 1)):
        answer = replying(429, error(None), **{"Retry-After": told})
        async with upstream(answer) as server, remote(tmp_path, server.url) as engine:
            with pytest.raises(errors.QueueFull) as caught:
                await engine.complete(chat(), Watch())
            assert caught.value.retry_after_s == expected


async def drop(request: web.Request) -> web.StreamResponse:
    """Close the connection without a word."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def cut(request: web.Request) -> web.StreamResponse:
    """Promise more than comes."""
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"{")
    return await drop(request)


@pytest.mark.fault("B6", "O2")
@pytest.mark.parametrize("answer", [drop, cut])
async def test_a_lost_connection_is_a_dead_engine_and_a_send(tmp_path: Path, answer: Answer) -> None:
    """503 engine_failed for whoever counts; told to the metrics; not sent again."""
    async with upstream(answer) as server, remote(tmp_path, server.url) as engine:
        events: list[str] = []
        engine.on_event = events.append
        with pytest.raises(EngineFailed, match="connection lost"):
            await engine.complete(chat(), Watch())
        assert (len(server.bodies), events) == (1, ["failure"])


async def test_nobody_there_is_waiting(tmp_path: Path, free_port: int) -> None:
    """Not a dead engine: nothing was sent."""
    async with remote(tmp_path, f"http://127.0.0.1:{free_port}") as engine:
        with pytest.raises(StageUnreachable) as caught:
            await engine.complete(chat(), Watch())
        assert caught.value.retry_after_s is not None


@pytest.mark.fault("B8")
async def test_no_answer_in_time_and_a_cancelled_call_close_the_connection(tmp_path: Path) -> None:
    """The server learns that nobody waits, and stops generating."""

    async def hang(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with upstream(hang) as server, remote(tmp_path, server.url, timeout_s=0.3) as engine:
        with pytest.raises(StageTimeout):
            await engine.complete(chat(), Watch())
        await asyncio.wait_for(server.gone.wait(), 5)
        server.gone.clear()
        call = asyncio.create_task(engine.complete(chat(), Watch()))
        while len(server.bodies) < 2:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)
        call.cancel()
        await asyncio.wait_for(server.gone.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.fault("B7")
async def test_readiness_is_a_real_answer(tmp_path: Path) -> None:
    """A healthy page alone does not do; a server without one is asked for its models instead."""
    async with upstream(replying(500, error(None))) as server, remote(tmp_path, server.url) as engine:
        with pytest.raises(StageUnreachable, match="500"):
            await Readiness(engine).check()
        server.answer, server.has_health = None, False
        await Readiness(engine).check()
        assert len(server.bodies) == 2
        assert server.bodies[1]["max_tokens"] == 1


async def test_a_proof_of_life_is_used_for_a_while(tmp_path: Path) -> None:
    """Ten checks at once and one after are one probe; a real answer counts as well."""
    async with upstream() as server, remote(tmp_path, server.url) as engine:
        readiness = Readiness(engine)
        await asyncio.gather(*(readiness.check() for _ in range(10)))
        await readiness.check()
        assert len(server.bodies) == 1
        engine.alive_at = None
        await engine.complete(chat(), Watch())
        await readiness.check()
        assert len(server.bodies) == 2


async def test_a_probe_without_an_answer_ends(tmp_path: Path) -> None:
    """Within the deadline, whatever the engine does."""

    async def hang(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with upstream(hang) as server, remote(tmp_path, server.url) as engine:
        with pytest.raises(StageUnreachable, match=r"no answer within 0\.2 s"):
            await Readiness(engine, deadline_s=0.2).check()


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


def test_a_remote_engine_needs_its_url(tmp_path: Path) -> None:
    """The message names the key."""
    with pytest.raises(ConfigError, match="remote_url"):
        stage2_config(tmp_path, engine="remote")
