"""OpenAI's own client, unmodified, against the daemon when things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from pipeline_ver2.errors import BadReply, EngineFailed, QueueFull, StageTimeout, StageUnreachable, ZroactError
from serving.workers.stage2_server import build_app
from tests.chats import SCHEMA, chat_body, guided, image_part, picture
from tests.servers import served
from tests.stage2 import ScriptedEngine, stage2_config

Ask = Callable[..., Any]


@asynccontextmanager
async def client_of(server: AbstractContextManager[str], max_retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a daemon."""
    with server as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=max_retries) as client:
            yield client


def asking(client: openai.AsyncOpenAI, **fields: object) -> Any:  # noqa: ANN401 - a chat or a stream, for the test to say
    """One question with one picture."""
    create: Ask = client.chat.completions.create
    return create(**{**chat_body(picture()), **fields})


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a daemon with the emulated engine."""
    async with client_of(served(build_app(stage2_config(tmp_path)))) as made:
        yield made


FETCHED = [{"role": "user", "content": [image_part("http://127.0.0.1:1/a.jpg")]}]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"n": 2}, "n", "one answer per request"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": FETCHED}, "messages.0.content.0", "fetches nothing"),
        ({"response_format": guided({**SCHEMA, "type": "nonsense"})}, "response_format.json_schema.schema", "nonsense"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "not supported"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_request_names_its_field(
    client: openai.AsyncOpenAI, fields: dict[str, Any], param: str, said: str, stream: object
) -> None:
    """400 as OpenAI's, streamed or not: code, type, the field as `param`, what is wrong."""
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        await asking(client, stream=stream, **fields)
    error = caught.value
    assert (error.status_code, error.code, error.type, error.param) == (
        400,
        "bad_request",
        "invalid_request_error",
        param,
    )


async def test_an_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    """404, and the message names the one that is there."""
    with pytest.raises(openai.NotFoundError, match="this is 'emulated'") as caught:
        await asking(client, model="gpt")
    error = caught.value
    assert (error.code, error.type, error.param) == ("model_not_found", "invalid_request_error", "model")


async def test_an_unknown_path_is_not_found(client: openai.AsyncOpenAI) -> None:
    """In the same shape."""
    with pytest.raises(openai.NotFoundError) as caught:
        await client.embeddings.create(model="emulated", input="text")
    assert caught.value.type == "invalid_request_error"


async def test_a_body_that_is_too_large(tmp_path: Path) -> None:
    """413."""
    async with client_of(served(build_app(stage2_config(tmp_path, max_body_mb=0.001)))) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await asking(client, user="x" * 2000)
    assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (QueueFull("full", retry_after_s=3), openai.RateLimitError, 429),
        (EngineFailed("it died"), openai.InternalServerError, 503),
        (StageUnreachable("loading", retry_after_s=3), openai.InternalServerError, 503),
        (StageTimeout("slow"), openai.InternalServerError, 504),
        (BadReply("nonsense"), openai.InternalServerError, 502),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_failures_have_openais_classes(
    tmp_path: Path, error: ZroactError, kind: type[openai.APIStatusError], status: int, stream: object
) -> None:
    """What a client may retry, with the time where one is known; a stream fails before its first event."""
    server = served(build_app(stage2_config(tmp_path), ScriptedEngine(error)), until_ready=False)
    async with client_of(server) as client:
        with pytest.raises(kind) as caught:
            await asking(client, stream=stream)
    failed = caught.value
    assert (failed.status_code, failed.code, failed.type, failed.param) == (status, error.code, "server_error", None)
    expected = None if getattr(error, "retry_after_s", None) is None else "3"
    assert failed.response.headers.get("Retry-After") == expected


async def test_the_clients_own_retries_work(tmp_path: Path) -> None:
    """It waits as it is told and asks again."""
    engine = ScriptedEngine(StageUnreachable("loading", retry_after_s=0.5), "there")
    async with client_of(served(build_app(stage2_config(tmp_path), engine), until_ready=False), 1) as client:
        completion = await asking(client)
    assert completion.choices[0].message.content == "there"
    assert len(engine.chats) == 2


async def test_the_blocking_client_works_too(tmp_path: Path) -> None:
    """As scripts use it."""

    def ask(url: str) -> str | None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            messages = cast("list[ChatCompletionMessageParam]", chat_body(picture())["messages"])
            return client.chat.completions.create(model="emulated", messages=messages).choices[0].message.content

    with served(build_app(stage2_config(tmp_path))) as url:
        assert await asyncio.to_thread(ask, url) == "emulated answer"
