"""The Stage 2 daemon over HTTP, as OpenAI clients and plain ones see it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from openai.types.shared_params import ResponseFormatJSONSchema

from pipeline_ver2 import wire
from pipeline_ver2.errors import EngineFailed, StageUnreachable
from serving.workers.chat import decode_image
from serving.workers.stage2_server import build_app
from tests.chats import SCHEMA, chat_body, guided, picture
from tests.servers import served, spawned
from tests.stage2 import ScriptedEngine, stage2_config


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon with the emulated engine that answers at once."""
    with served(build_app(stage2_config(tmp_path_factory.mktemp("stage2")))) as address:
        yield address


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A plain HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


FORMAT = cast("ResponseFormatJSONSchema", guided())


def messages(*pictures: bytes) -> list[ChatCompletionMessageParam]:
    """One message of the user, in the types of OpenAI's client."""
    return cast("list[ChatCompletionMessageParam]", chat_body(*pictures)["messages"])


async def post(http: aiohttp.ClientSession, url: str, body: object, **headers: str) -> tuple[int, Any, Any]:
    """Status, JSON and headers of one chat."""
    async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        return response.status, await response.json(), response.headers


def timing(headers: Mapping[str, str]) -> tuple[float, float]:
    """`(queue_s, run_s)` as the reply tells them."""
    queue_s, run_s = wire.parse_server_timing(headers[wire.SERVER_TIMING_HEADER])
    assert queue_s is not None
    assert run_s is not None
    return queue_s, run_s


async def value_of(http: aiohttp.ClientSession, url: str, series: str) -> float:
    """One value of `/metrics`."""
    async with http.get(f"{url}/metrics") as response:
        found = re.search(rf"^{re.escape(series)} (\S+)$", await response.text(), re.MULTILINE)
    return float(found.group(1)) if found else 0.0


async def queue_of(http: aiohttp.ClientSession, url: str) -> dict[str, int]:
    """The queue as `/health` tells it."""
    async with http.get(f"{url}/health") as response:
        queue: dict[str, int] = (await response.json())["queue"]
    return queue


async def until_running(http: aiohttp.ClientSession, url: str, running: int, waiting: int = 0) -> None:
    """Ask until so many are at work and so many wait."""
    async with asyncio.timeout(10):
        while True:
            queue = await queue_of(http, url)
            if (queue["running"], queue["waiting"]) == (running, waiting):
                return


async def test_the_openai_client_gets_a_guided_answer(client: openai.AsyncOpenAI) -> None:
    """Three pictures and a schema in, a valid object out, with usage; the same again for the same request."""
    pictures = [picture(shade) for shade in (10, 20, 30)]
    said = [
        await client.chat.completions.create(
            model="emulated", messages=messages(*pictures), response_format=FORMAT, logprobs=True, temperature=0
        )
        for _ in range(2)
    ]
    choice = said[0].choices[0]
    answer = json.loads(choice.message.content or "")
    assert answer["action"] in SCHEMA["properties"]["action"]["enum"]
    assert choice.finish_reason == "stop"
    assert said[0].usage is not None
    assert said[0].usage.total_tokens == said[0].usage.prompt_tokens + said[0].usage.completion_tokens
    assert said[1].choices[0].message.content == choice.message.content


async def test_the_openai_client_gets_a_stream(client: openai.AsyncOpenAI) -> None:
    """Its chunks add up to the whole answer; the usage comes last where asked for."""
    whole = await client.chat.completions.create(model="emulated", messages=messages(picture()), response_format=FORMAT)
    stream = await client.chat.completions.create(
        model="emulated",
        messages=messages(picture()),
        response_format=FORMAT,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:] if chunk.choices] == ["stop"]
    assert chunks[-1].usage == whole.usage


async def test_a_stream_is_server_sent_events_with_a_done(http: aiohttp.ClientSession, url: str) -> None:
    """The bytes on the wire, as other clients read them."""
    body = chat_body(stream=True)
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        assert wire.SERVER_TIMING_HEADER in response.headers
        events = (await response.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events[:-2])


async def test_the_openai_client_lists_the_model(client: openai.AsyncOpenAI) -> None:
    """The one that is served, and by which engine."""
    listed = [model.model_dump() async for model in client.models.list()]
    assert [(each["id"], each["engine"]) for each in listed] == [("emulated", "emulated")]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe"])
async def test_a_body_that_is_no_json_object_is_refused(http: aiohttp.ClientSession, url: str, body: bytes) -> None:
    """400, never a crash."""
    async with http.post(f"{url}/v1/chat/completions", data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "bad_request"


async def test_every_answer_says_how_long_it_waited_and_ran(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """The second of two waits for the first."""
    config = stage2_config(tmp_path, limit=1, emulated__service_s=0.3)
    with served(build_app(config)) as url:
        replies = await asyncio.gather(*(post(http, url, chat_body(picture())) for _ in range(2)))
    (first_wait, first_run), (second_wait, second_run) = sorted(timing(headers) for _, _, headers in replies)
    assert [first_run, second_run] == pytest.approx([0.3, 0.3], abs=0.15)
    assert [first_wait, second_wait] == pytest.approx([0, 0.3], abs=0.15)


@pytest.mark.slow
async def test_the_emulated_service_time_includes_decoding(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Large pictures are really decoded, and the answer still comes when it should."""
    pictures = [picture(size=(3000, 2000))] * 3
    began = time.perf_counter()
    for each in pictures:
        decode_image(each, "it")
    decode_s = time.perf_counter() - began
    service_s = 0.3 + 2 * decode_s
    with served(build_app(stage2_config(tmp_path, emulated__service_s=service_s))) as url:
        _, _, headers = await post(http, url, chat_body(*pictures))
    assert service_s <= timing(headers)[1] < service_s + 0.6 * decode_s


async def test_company_slows_the_emulated_engine_down(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """`per_extra_s` for each other request at work."""
    config = stage2_config(tmp_path, limit=2, emulated__service_s=0.2, emulated__per_extra_s=0.3)
    with served(build_app(config)) as url:
        replies = await asyncio.gather(*(post(http, url, chat_body()) for _ in range(2)))
    runs = sorted(timing(headers)[1] for _, _, headers in replies)
    assert runs == pytest.approx([0.2, 0.5], abs=0.15)


async def test_a_full_queue_answers_429_with_a_time(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """One at work, one waiting, the third refused; and none of them is lost."""
    engine = ScriptedEngine([ScriptedEngine.HANG], "second")
    with served(build_app(stage2_config(tmp_path, limit=1, max_queue=1), engine), until_ready=False) as url:
        first = asyncio.create_task(post(http, url, chat_body()))
        await until_running(http, url, 1)
        second = asyncio.create_task(post(http, url, chat_body()))
        await until_running(http, url, 1, 1)
        status, body, headers = await post(http, url, chat_body())
        assert (status, body["error"]["code"]) == (429, "queue_full")
        assert int(headers["Retry-After"]) >= 1
        first.cancel()
        status, body, _ = await second
        assert (status, body["choices"][0]["message"]["content"]) == (200, "second")


@pytest.mark.fault("B8")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_stops_when_the_client_is_gone(
    http: aiohttp.ClientSession, tmp_path: Path, stream: object
) -> None:
    """Within its answer or before its first word; the permit is free again."""
    engine = ScriptedEngine(["One", ScriptedEngine.HANG])
    with served(build_app(stage2_config(tmp_path), engine), until_ready=False) as url:
        request = http.post(f"{url}/v1/chat/completions", json=chat_body(stream=stream))
        if stream:
            async with request as response:
                assert b"assistant" in await response.content.readline()
                assert engine.next_event() == "began"
                response.close()
        else:
            task = asyncio.ensure_future(request)
            assert await asyncio.to_thread(engine.next_event) == "began"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await asyncio.to_thread(engine.next_event) == "ended"
        await until_running(http, url, 0)
        assert await value_of(http, url, 'zroact_stage2_requests_total{outcome="cancelled"}') == 1


async def test_a_key_joins_and_replays(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Three requests with one key are one piece of work; another body under the same key is another."""
    engine = ScriptedEngine("first", "other")
    with served(build_app(stage2_config(tmp_path), engine), until_ready=False) as url:
        key = {wire.IDEMPOTENCY_HEADER: "job/slot-1/1"}
        together = await asyncio.gather(*(post(http, url, chat_body(), **key) for _ in range(2)))
        later = await post(http, url, chat_body(), **key)
        other = await post(http, url, chat_body(text="Another?"), **key)
    contents = [body["choices"][0]["message"]["content"] for _, body, _ in (*together, later, other)]
    assert contents == ["first", "first", "first", "other"]
    assert len(engine.chats) == 2


@pytest.mark.fault("B6")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_engine_is_503_and_nothing_is_sent_again(
    http: aiohttp.ClientSession, tmp_path: Path, stream: object
) -> None:
    """Retryable, and the caller's to count: the engine saw it once. The next request is served."""
    engine = ScriptedEngine(EngineFailed("it died"), "alive")
    with served(build_app(stage2_config(tmp_path), engine), until_ready=False) as url:
        status, body, _ = await post(http, url, chat_body(stream=stream))
        assert (status, body["error"]["code"], body["error"]["retryable"]) == (503, "engine_failed", True)
        assert len(engine.chats) == 1
        assert (await post(http, url, chat_body()))[0] == 200


async def test_a_stream_that_breaks_off_says_so(tmp_path: Path) -> None:
    """The status has gone out already: an error event comes instead of [DONE], and OpenAI's client raises."""
    engine = ScriptedEngine(["One", EngineFailed("it died")])
    with served(build_app(stage2_config(tmp_path), engine), until_ready=False) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(model="emulated", messages=messages(), stream=True)
            with pytest.raises(openai.APIError, match="it died"):
                async for _ in stream:
                    pass


@pytest.mark.fault("B7")
async def test_not_ready_yet_is_503_with_a_time(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Alive, but not ready, and requests are told when to come back."""
    engine = ScriptedEngine(*(StageUnreachable("loading", retry_after_s=3) for _ in range(2)))
    with served(build_app(stage2_config(tmp_path), engine), until_ready=False) as url:
        async with http.get(f"{url}/livez") as response:
            assert response.status == 200
        async with http.get(f"{url}/readyz") as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "3")
        status, body, headers = await post(http, url, chat_body())
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "stage_unreachable", "3")


async def test_an_engine_that_takes_too_long_is_504(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """`stage2.timeout_s` bounds the work, of streams too, and the engine is stopped."""
    engine = ScriptedEngine([ScriptedEngine.HANG], [ScriptedEngine.HANG])
    with served(build_app(stage2_config(tmp_path, timeout_s=0.1), engine), until_ready=False) as url:
        for stream in (False, True):
            status, body, _ = await post(http, url, chat_body(stream=stream))
            assert (status, body["error"]["code"]) == (504, "stage_timeout")
        assert [engine.next_event() for _ in range(4)] == ["began", "ended"] * 2


async def test_a_deadline_that_has_passed_is_shed(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Final: 503 with its own code, and the engine is not bothered."""
    engine = ScriptedEngine()
    with served(build_app(stage2_config(tmp_path), engine), until_ready=False) as url:
        status, body, _ = await post(http, url, chat_body(), **{wire.DEADLINE_HEADER: "-1"})
    assert (status, body["error"]["code"], body["error"]["retryable"]) == (503, "shed_deadline", False)
    assert engine.chats == []


@pytest.mark.fault("B9")
async def test_running_out_of_memory_lowers_the_limit(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Said in the metrics."""
    engine = ScriptedEngine()
    with served(build_app(stage2_config(tmp_path, limit=2), engine), until_ready=False) as url:
        engine.on_event("out_of_memory")
        assert await value_of(http, url, 'zroact_stage2_engine_events_total{event="out_of_memory"}') == 1
        assert await value_of(http, url, "zroact_stage2_limit") == 1


async def test_engine_and_model_are_named_everywhere(http: aiohttp.ClientSession, url: str) -> None:
    """In /health and in the metrics, beside /v1/models."""
    async with http.get(f"{url}/health") as response:
        health = await response.json()
    assert (health["engine"], health["model"]) == ("emulated", "emulated")
    assert await value_of(http, url, 'zroact_stage2_engine{engine="emulated",model="emulated"}') == 1


@pytest.mark.slow
def test_the_daemon_runs_as_a_process(tmp_path: Path) -> None:
    """By its module, on a free port, with the emulated engine named in its log."""
    arguments = ["-m", "serving.workers.stage2_server", "--port", "0", "--set", "stage2.engine=emulated"]
    with spawned(arguments, tmp_path) as daemon:
        daemon.process.terminate()
        assert daemon.process.wait(20) == 0
        assert "engine emulated, model emulated" in daemon.log()
