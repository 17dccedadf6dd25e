"""The check of a request's schema: right the first time and the second, and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_ver2.errors import RequestError
from serving.workers import chat_schema
from serving.workers.chat import parse_chat
from serving.workers.chat_schema import check_json_schema
from tests.chats import SCHEMA, chat_body, guided


def nested(depth: int) -> dict[str, Any]:
    """A schema with so many levels."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "nonsense"}, "^it: 'nonsense' is not valid"),
        ({"type": "object", "properties": []}, r"^it: \[\] is not of type 'object'"),
        (nested(300), "^it: is nested too deeply"),
        ({"type": "nonsense", "description": "x" * 20_000}, "^it: 'nonsense' is not valid"),
    ],
)
def test_what_is_no_schema_is_refused_every_time(schema: dict[str, Any], said: str) -> None:
    """A remembered refusal is one too, and a long schema is checked though it is not remembered."""
    for _ in range(2):
        with pytest.raises(RequestError, match=said):
            check_json_schema(schema, "it")


def test_a_schema_passes_every_time() -> None:
    """Also beside a bad one that looks alike."""
    for _ in range(2):
        check_json_schema(SCHEMA, "it")
        with pytest.raises(RequestError):
            check_json_schema({**SCHEMA, "required": 1}, "it")


def test_the_memory_is_bounded() -> None:
    """Neither many schemas nor long ones fill it."""
    for at in range(100):
        check_json_schema({"const": at}, "it")
    before = chat_schema._remembered_problem.cache_info()
    check_json_schema({"const": "x" * 20_000}, "it")
    assert before.currsize == chat_schema._remembered_problem.cache_info().currsize == 64


def test_a_request_with_a_schema_nested_too_deeply_is_refused() -> None:
    """A refusal with the field's name, not a failure of the server."""
    with pytest.raises(RequestError, match=r"^response_format.json_schema.schema: is nested too deeply"):
        parse_chat(chat_body(response_format=guided(nested(300))), default_max_tokens=9)
