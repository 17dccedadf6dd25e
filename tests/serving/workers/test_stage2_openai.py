"""The client of one OpenAI-compatible server: every reply and every silence has its error, nothing is sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from pipeline_ver2 import errors
from pipeline_ver2.errors import ZroactError
from serving.workers.stage2_openai import OpenAIServer
from tests.openai_upstream import (
    COMPLETION,
    Answer,
    chunk,
    cut,
    drop,
    error,
    hang,
    replying,
    streaming,
    upstream,
)

BODY = {"model": "m", "messages": []}


@asynccontextmanager
async def client_of(url: str, *, timeout_s: float = 5) -> AsyncIterator[OpenAIServer]:
    """The client, closed afterwards."""
    client = OpenAIServer(url, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
async def test_the_url_may_end_with_v1_or_not(path: str) -> None:
    """Both are in use."""
    async with upstream() as server, client_of(server.url + path) as client:
        assert await client.complete(BODY) == COMPLETION
        assert server.bodies == [BODY]
        assert [model["id"] for model in await client.models()] == ["first", "second"]


async def test_health_is_asked_else_the_models() -> None:
    """vLLM has a health page, others have not."""
    async with upstream() as server, client_of(server.url) as client:
        await client.healthy()
        server.has_health = False
        await client.healthy()


async def test_a_server_that_was_let_go_is_unreachable() -> None:
    """A request whose body was being encoded meanwhile has to wait for the next server, it was not lost."""
    async with upstream() as server, client_of(server.url) as client:
        await client.close()
        with pytest.raises(errors.StageUnreachable) as caught:
            await client.complete(BODY)
        assert caught.value.retry_after_s is not None
        assert server.bodies == []


async def test_a_server_without_metrics_says_so() -> None:
    """As for any page that does not exist."""
    async with upstream() as server, client_of(server.url) as client:
        with pytest.raises(errors.UnknownModel):
            await client.metrics()


async def test_a_stream_is_passed_on_chunk_by_chunk() -> None:
    """To its end."""
    async with upstream(streaming(chunk("a"), chunk("b"), "[DONE]")) as server, client_of(server.url) as client:
        chunks = [each async for each in client.stream(BODY)]
    assert [each["choices"][0]["delta"]["content"] for each in chunks] == ["a", "b"]


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([chunk("a")], errors.EngineFailed),
        ([chunk("a"), '{"error": {"message": "it broke", "code": 500}}'], errors.EngineFailed),
        ([chunk("a"), "{"], errors.BadReply),
    ],
    ids=["cut off", "error event", "nonsense"],
)
async def test_a_stream_that_breaks_off_is_an_error(events: list[str], kind: type[ZroactError]) -> None:
    """What came before it is passed on."""
    async with upstream(streaming(*events)) as server, client_of(server.url) as client:
        stream = client.stream(BODY)
        assert (await anext(stream))["choices"][0]["delta"]["content"] == "a"
        with pytest.raises(kind):
            await anext(stream)


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
async def test_every_reply_has_its_error_and_nothing_is_sent_again(answer: Answer, kind: type[ZroactError]) -> None:
    """The server's own words are in it; the server saw the chat once."""
    async with upstream(answer) as server, client_of(server.url) as client:
        with pytest.raises(kind, match=r"because|not a JSON object") as caught:
            await client.complete(BODY)
        assert type(caught.value) is kind
        assert len(server.bodies) == 1


@pytest.mark.parametrize(("told", "expected"), [("7", 7), ("soon", 1)])
async def test_retry_after_is_passed_on(told: str, expected: float) -> None:
    """The caller waits as long as the server asked for; nonsense is replaced."""
    answer = replying(429, error(None), **{"Retry-After": told})
    async with upstream(answer) as server, client_of(server.url) as client:
        with pytest.raises(errors.QueueFull) as caught:
            await client.complete(BODY)
        assert caught.value.retry_after_s == expected


@pytest.mark.fault("B6", "O2")
@pytest.mark.parametrize("answer", [drop, cut])
async def test_a_lost_connection_is_a_dead_engine_and_a_send(answer: Answer) -> None:
    """For the caller to count; not sent again."""
    async with upstream(answer) as server, client_of(server.url) as client:
        with pytest.raises(errors.EngineFailed, match="connection lost"):
            await client.complete(BODY)
        assert len(server.bodies) == 1


async def test_nobody_there_is_waiting(free_port: int) -> None:
    """Not a dead engine: nothing was sent."""
    async with client_of(f"http://127.0.0.1:{free_port}") as client:
        with pytest.raises(errors.StageUnreachable) as caught:
            await client.complete(BODY)
        assert caught.value.retry_after_s is not None


@pytest.mark.fault("B8")
async def test_no_answer_in_time_closes_the_connection() -> None:
    """The server learns that nobody waits."""
    async with upstream(hang) as server, client_of(server.url, timeout_s=0.2) as client:
        with pytest.raises(errors.StageTimeout):
            await client.complete(BODY)
        await asyncio.wait_for(server.gone.wait(), 5)


@pytest.mark.fault("O3")
async def test_time_outs_count_no_waiting_for_a_connection() -> None:
    """More requests at once than pools usually have: each has its own connection and all its time."""
    arrived = asyncio.Semaphore(0)
    go_on = asyncio.Event()

    async def held(_request: web.Request) -> web.StreamResponse:
        arrived.release()
        await go_on.wait()
        return web.json_response(COMPLETION)

    async with upstream(held) as server, client_of(server.url, timeout_s=20) as client, asyncio.TaskGroup() as group:
        for _ in range(120):
            group.create_task(client.complete(BODY))
        async with asyncio.timeout(15):
            for _ in range(120):
                await arrived.acquire()
        go_on.set()


async def test_a_reply_without_end_is_cut_off() -> None:
    """Nobody's memory is filled."""
    async with upstream(replying(200, {"x": "y" * (9 * 1024 * 1024)})) as server, client_of(server.url) as client:
        with pytest.raises(errors.BadReply, match="over"):
            await client.complete(BODY)
