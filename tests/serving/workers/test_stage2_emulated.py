"""The emulated engine: honest about its input, plain about its output."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline_ver2.errors import RequestError
from serving.workers.chat import Chat, parse_chat
from serving.workers.stage2_emulated import EmulatedEngine, made_up_answer
from serving.workers.stage2_engine import Watch
from tests.chats import SCHEMA, chat_body, guided, picture
from tests.stage2 import stage2_config


def chat(*pictures: bytes, **fields: object) -> Chat:
    """A checked chat."""
    return parse_chat({**chat_body(*pictures), **fields}, default_max_tokens=160)


def test_answers_depend_on_the_images_only() -> None:
    """The same images, the same answer; over many images, every action comes up."""
    said = [made_up_answer(chat(picture(shade), response_format=guided())) for shade in range(40)]
    again = [made_up_answer(chat(picture(shade), response_format=guided())) for shade in range(40)]
    assert said == again
    assert {json.loads(text)["action"] for text in said} == set(SCHEMA["properties"]["action"]["enum"])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"safe": {"type": "boolean"}, "count": {"type": "integer", "minimum": 3}}},
        {"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a"]}, "minItems": 2}}},
        {"type": "object", "properties": {"kind": {"const": "x"}, "nothing": {"type": "null"}}},
        {"type": "string", "maxLength": 3},
    ],
)
def test_plain_schemas_get_a_valid_answer(schema: dict[str, Any]) -> None:
    """Whatever a user's own answer schema is likely to hold."""
    jsonschema.validate(json.loads(made_up_answer(chat(response_format=guided(schema)))), schema)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "minLength": 100}, "cannot make up"),
        ({"type": "object", "properties": {"action": {"enum": []}}}, "cannot make up"),
        ({"type": "object", "properties": {"action": False}}, "cannot make up"),
        ({"$ref": "#"}, "cannot make up"),
        ({"type": "string", "pattern": "^(((a+)+)+)+$"}, "regular expressions"),
        ({"$ref": "http://127.0.0.1:9/schema"}, "not in the schema itself"),
    ],
)
def test_a_schema_beyond_it_is_refused(schema: dict[str, Any], said: str) -> None:
    """Better than an answer that does not fit, a check that never ends, or a fetch."""
    with pytest.raises(RequestError, match=said):
        made_up_answer(chat(response_format=guided(schema)))


def test_its_input_is_really_decoded() -> None:
    """A picture that is cut off fails as it would elsewhere."""
    whole = picture(size=(400, 300), kind="PNG")
    with pytest.raises(RequestError, match="damaged"):
        made_up_answer(chat(whole[: len(whole) // 2]))


async def test_the_bound_on_tokens_is_kept(tmp_path: Path) -> None:
    """`length`, and no more pieces."""
    engine = EmulatedEngine(stage2_config(tmp_path).stage2)
    completion = await engine.complete(chat(picture(), response_format=guided(), max_tokens=2), Watch())
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == 2
    assert completion["choices"][0]["logprobs"] is None


async def test_a_cancelled_request_no_longer_counts_as_company(tmp_path: Path) -> None:
    """Nothing is left behind."""
    engine = EmulatedEngine(stage2_config(tmp_path, emulated__service_s=60).stage2)
    work = asyncio.create_task(engine.complete(chat(), Watch()))
    await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert engine._running == 0


async def test_a_probe_takes_no_service_time(tmp_path: Path) -> None:
    """It asks for one token; the service time stands for a whole answer."""
    engine = EmulatedEngine(stage2_config(tmp_path, emulated__service_s=60).stage2)
    async with asyncio.timeout(10):
        await engine.probe(chat(picture()))
    assert engine.alive_at is not None
