"""JSON that is none, or whose text is no Unicode: told to whoever sent it, by every route of both daemons."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from pipeline_ver2.config import load_config
from serving.workers import stage1_server, stage2_server
from tests.chats import picture
from tests.servers import served

INFER, CHAT = "/v2/models/yowov3/infer", "/v1/chat/completions"
HALF = "half \ud800"
KEY = {"Idempotency-Key": "job/1"}
PICTURE = base64.b64encode(picture()).decode()


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """Both daemons with engines that answer at once."""
    settings = {f"stage{n}.{key}": value for n in (1, 2) for key, value in _AT_ONCE.items()}
    config = load_config(None, settings, environ={})
    with served(stage1_server.build_app(config)) as stage1, served(stage2_server.build_app(config)) as stage2:
        yield {
            "/detect": stage1,
            INFER: stage1,
            "/evaluate": stage2,
            CHAT: stage2,
        }


_AT_ONCE = {"engine": "emulated", "emulated.service_s": 0}


def _slot(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {"slot_id": "a", "images": [{"data": PICTURE, "time_s": 0}], "labels": ["walk"], **changes}


def _chat(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {"model": "emulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **changes}


HALVES: list[tuple[str, dict[str, Any]]] = [
    ("/detect", {"clips": [{"clip_id": HALF, "frames": [PICTURE] * 16}]}),
    ("/detect", {"clips": [{"clip_id": "a", "frame_paths": [HALF] * 16}]}),
    ("/detect", {"clips": [{"clip_id": "a", HALF: 1}]}),
    (INFER, {"id": HALF, "inputs": []}),
    (INFER, {"inputs": [{"name": HALF, "shape": [1], "datatype": "UINT8", "data": [1]}]}),
    ("/evaluate", _slot(slot_id=HALF)),
    ("/evaluate", _slot(labels=[HALF])),
    ("/evaluate", _slot(prompt=HALF)),
    ("/evaluate", _slot(schema={"type": "object", "title": HALF})),
    ("/evaluate", _slot(detections=[[{"box": [0, 0, 1, 1], "labels": [{"name": HALF, "score": 1}]}]])),
    (CHAT, _chat(model=HALF)),
    (CHAT, _chat(user=HALF)),
    (CHAT, _chat(messages=[{"role": "user", "content": HALF}])),
    (CHAT, _chat(messages=[{"role": "user", "content": HALF}], stream=True)),
    (CHAT, _chat(chat_template_kwargs={HALF: 1})),
    (
        CHAT,
        _chat(response_format={"type": "json_schema", "json_schema": {"name": HALF, "schema": {}}}),
    ),
]


async def post(urls: dict[str, str], path: str, body: bytes, **headers: str) -> tuple[int, str]:
    """Status and text of a reply."""
    sent = {"Content-Type": "application/json", **headers}
    async with aiohttp.ClientSession() as session, session.post(urls[path] + path, data=body, headers=sent) as reply:
        return reply.status, await reply.text()


@pytest.mark.parametrize("headers", [{}, KEY])
@pytest.mark.parametrize(("path", "body"), HALVES)
async def test_half_a_character(urls: dict[str, str], path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
    """Escaped or as bytes, in values and in keys, with an idempotency key and without: refused, and why is told."""
    status, text = await post(urls, path, json.dumps(body).encode(), **headers)
    assert (status, "body: not valid JSON" in text) == (400 if path.startswith("/v") else 422, True)
    raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert (await post(urls, path, raw, **headers))[0] == status


@pytest.mark.parametrize("body", [b"", b"{", b"\xff{", b"[" * 50_000, '{"a": 1}'.encode("utf-16")])
@pytest.mark.parametrize("path", ["/detect", INFER, "/evaluate", CHAT])
async def test_no_json(urls: dict[str, str], path: str, body: bytes) -> None:
    """The same status as for every request that does not fit."""
    assert (await post(urls, path, body))[0] == (400 if path.startswith("/v") else 422)


async def test_whole_characters_pass(urls: dict[str, str]) -> None:
    """Beyond the basic plane, escaped as a pair; also in a long body, which is read in a thread."""
    for name in ("\N{GRINNING FACE}", "\N{GRINNING FACE}" * 50_000):
        body = json.dumps({"clips": [{"clip_id": name, "frames": []}]}).encode()
        status, text = await post(urls, "/detect", body)
        assert status == 200
        assert json.loads(text)["results"][0]["clip_id"] == name
