"""`POST /evaluate`, the people's way to ask about one slot."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from prometheus_client import CollectorRegistry

from pipeline_ver2 import wire
from pipeline_ver2.errors import EngineFailed, StageUnreachable
from pipeline_ver2.prompts import QUESTION, encode_image
from serving.workers.chat import decode_image
from serving.workers.daemon import RequestContext
from serving.workers.stage2_emulated import EmulatedEngine
from serving.workers.stage2_evaluate import evaluate
from serving.workers.stage2_server import build_app
from serving.workers.stage2_service import Stage2Service
from tests.chats import picture
from tests.servers import served
from tests.stage2 import GOOD, ScriptedEngine, stage2_config

IMAGES = [{"data": base64.b64encode(picture(shade)).decode(), "time_s": at} for at, shade in enumerate((10, 20, 30))]
WALKING = [{"box": [0, 0, 1, 1], "labels": [{"name": "walk", "score": 0.8}]}]


def slot(**fields: object) -> dict[str, Any]:
    """A request for one slot."""
    return {"slot_id": "s1", "images": IMAGES, **fields}


def post(url: str, body: object) -> tuple[int, Any, str | None]:
    """Status, JSON and `Server-Timing` of a request."""
    request = urllib.request.Request(  # noqa: S310 - our own address
        f"{url}/evaluate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310 - as above
            return response.status, json.load(response), response.headers[wire.SERVER_TIMING_HEADER]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), None


@pytest.fixture(scope="module")
def shared_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon with the emulated engine."""
    with served(build_app(stage2_config(tmp_path_factory.mktemp("stage2")))) as url:
        yield url


def ask(folder: Path, body: object, engine: ScriptedEngine | None = None) -> tuple[int, Any, str | None]:
    """Ask a daemon of its own."""
    with served(build_app(stage2_config(folder), engine), until_ready=False) as url:
        return post(url, body)


def test_a_slot_is_evaluated_in_the_orchestrators_words(tmp_path: Path) -> None:
    """The same prompt, schema and encoding; the answer checked and confirmed, with its times."""
    engine = ScriptedEngine(GOOD)
    status, reply, timing = ask(tmp_path, slot(detections=[WALKING, [], []]), engine)
    assert status == 200
    assert reply["answer"] == {"action": "walk", "description": "One.", "confirmed": True}
    assert (reply["slot_id"], reply["attempts"], reply["finish_reason"], reply["raw_text"]) == ("s1", 1, "stop", GOOD)
    assert reply["confidence"] is None
    assert reply["usage"]["total_tokens"] == 5
    assert wire.parse_server_timing(timing)[1] == pytest.approx(reply["inference_ms"] / 1e3, abs=1e-3)
    chat = engine.chats[0]
    texts = [part["text"] for part in chat.messages[1]["content"] if part["type"] == "text"]
    asked = QUESTION.replace("{findings}", "frame 1: walk 0.80; frame 2: nobody; frame 3: nobody")
    assert texts[-1] == asked.replace("{labels}", "stand, walk")
    assert texts[1] == "Frame 2, t=1.00 s"
    first = decode_image(base64.b64decode(IMAGES[0]["data"]), "it")  # type: ignore[arg-type]
    assert chat.images[0] == encode_image(first, max_px=589_824, quality=90)


def test_the_emulated_engine_evaluates_too(tmp_path: Path) -> None:
    """End to end with nothing scripted: an answer among the demo labels."""
    status, reply, _ = ask(tmp_path, slot())
    assert status == 200
    assert reply["answer"]["action"] in {"stand", "walk", "run", "wave", "jump", "fall", "none"}
    assert reply["answer"]["confirmed"] is None


@pytest.mark.fault("B1")
def test_a_bad_answer_is_sampled_once_more(tmp_path: Path) -> None:
    """Two sends, the second not greedy; its answer counts."""
    engine = ScriptedEngine('{"action":"wal', GOOD)
    status, reply, _ = ask(tmp_path, slot(), engine)
    assert (status, reply["attempts"]) == (200, 2)
    assert [chat.temperature for chat in engine.chats] == [0.0, 0.7]


@pytest.mark.fault("B1", "B6")
def test_two_bad_answers_are_502_with_the_raw_text(tmp_path: Path) -> None:
    """A third send there is not."""
    engine = ScriptedEngine("walks " * 30, "walks again", GOOD)
    status, reply, _ = ask(tmp_path, slot(), engine)
    assert (status, reply["error"]["code"], reply["error"]["raw_text"]) == (502, "answer_invalid", "walks again")
    assert len(engine.chats) == 2


@pytest.mark.fault("B6")
def test_an_engine_that_dies_twice_under_a_slot_is_503(tmp_path: Path) -> None:
    """At most two sends in all, dead engines counted; the next slot is served."""
    engine = ScriptedEngine(EngineFailed("died"), EngineFailed("died again"), GOOD)
    with served(build_app(stage2_config(tmp_path), engine), until_ready=False) as url:
        status, reply, _ = post(url, slot())
        assert (status, reply["error"]["code"], len(engine.chats)) == (503, "engine_failed", 2)
        assert post(url, slot())[0] == 200


def test_an_engine_that_is_not_ready_is_not_a_send(tmp_path: Path) -> None:
    """503 at once, with a time to come back."""
    engine = ScriptedEngine(StageUnreachable("loading", retry_after_s=1), GOOD)
    status, reply, _ = ask(tmp_path, slot(), engine)
    assert (status, reply["error"]["code"], len(engine.chats)) == (503, "stage_unreachable", 1)


def test_images_may_be_paths_under_a_media_root(tmp_path: Path) -> None:
    """Nowhere else, not by dots, not by a link."""
    media = tmp_path / "media"
    media.mkdir()
    (media / "a.jpg").write_bytes(picture())
    (tmp_path / "outside.jpg").write_bytes(picture())
    (media / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    with served(build_app(stage2_config(tmp_path)), until_ready=False) as url:
        assert post(url, slot(images=[{"path": str(media / "a.jpg"), "time_s": 0}]))[0] == 200
        for path in (
            media / "link.jpg",
            tmp_path / "outside.jpg",
            media / ".." / "outside.jpg",
            media,
            media / "b.jpg",
        ):
            status, reply, _ = post(url, slot(images=[{"path": str(path), "time_s": 0}]))
            assert (status, reply["error"]["code"]) == (403, "media_path")


@pytest.mark.fault("B3", "B4")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"images": []}, "images"),
        ({"images": [{"time_s": 0}]}, "images.0: needs either data or path"),
        ({"images": [{"data": "", "path": "a", "time_s": 0}]}, "either data or path"),
        ({"images": [{"data": "%%", "time_s": 0}]}, "images.0.data: not valid base64"),
        ({"images": [{"data": "YQ==", "time_s": 0}]}, "images.0: not a JPEG"),
        ({"images": IMAGES[::-1]}, "times must not descend"),
        ({"detections": [[]]}, "1 lists for 3 images"),
        ({"schema": {"type": "nonsense"}}, "^schema: "),
        ({"prompt": " "}, "^prompt: "),
        ({"labels": []}, "labels"),
        ({"more": 1}, "more"),
    ],
)
def test_requests_that_do_not_fit_are_refused(shared_url: str, fields: dict[str, Any], said: str) -> None:
    """422, with the field's name first."""
    status, reply, _ = post(shared_url, slot(**fields))
    assert status == 422
    assert re.search(said, reply["error"]["message"])


@pytest.mark.fault("B4")
@pytest.mark.fault("B4")
def test_images_are_bounded_together_before_any_is_decoded(shared_url: str, tmp_path: Path) -> None:
    """By their pixels, told by their heads, and by their bytes where they are files."""
    vast = base64.b64encode(picture(size=(7000, 5000), kind="PNG")).decode()
    status, reply, _ = post(shared_url, slot(images=[{"data": vast, "time_s": at} for at in range(3)]))
    assert status == 422
    assert reply["error"]["message"].startswith("images: 105000000 pixels up to images.2, at most ")

    (tmp_path / "media").mkdir()
    file = tmp_path / "media" / "picture.jpg"
    file.write_bytes(picture() + bytes(600_000))
    images = [{"path": str(file), "time_s": at} for at in range(2)]
    with served(build_app(stage2_config(tmp_path, max_body_mb=1))) as url:
        assert post(url, slot(images=images[:1]))[0] == 200
        status, reply, _ = post(url, slot(images=images))
    assert status == 422
    assert reply["error"]["message"].startswith("images.1.path: ")


def test_small_and_long_images_are_padded(tmp_path: Path) -> None:
    """As the orchestrator would before sending."""
    engine = ScriptedEngine(GOOD)
    tiny = [{"data": base64.b64encode(picture(size=size)).decode(), "time_s": 0} for size in ((20, 10), (1000, 8))]
    assert ask(tmp_path, slot(images=tiny), engine)[0] == 200
    assert [decode_image(image, "it").shape for image in engine.chats[0].images] == [(64, 64, 3), (64, 1000, 3)]


@pytest.mark.fault("B3")
def test_an_image_that_fills_up_the_slot_is_named_so(tmp_path: Path) -> None:
    """The same image at the same time, again."""
    engine = ScriptedEngine(GOOD)
    ask(tmp_path, slot(images=[IMAGES[0], IMAGES[1], IMAGES[1]]), engine)
    texts = [part["text"] for part in engine.chats[0].messages[1]["content"] if part["type"] == "text"]
    assert texts[:3] == ["Frame 1, t=0.00 s", "Frame 2, t=1.00 s", "Frame 3, t=1.00 s, same as frame 2"]


def labels_asked(engine: ScriptedEngine) -> list[str]:
    """The enum of the action in what was sent."""
    schema = engine.chats[0].schema
    assert schema is not None
    names: list[str] = schema["properties"]["action"]["enum"]
    return names


def test_labels_come_from_the_request_or_the_embedded_model_and_from_the_findings(tmp_path: Path) -> None:
    """Never from nowhere: without any of them the request is refused."""
    named, known, foreign = ScriptedEngine('{"action":"hop","description":""}'), ScriptedEngine(GOOD), ScriptedEngine()
    foreign.labels = None
    assert ask(tmp_path, slot(labels=["hop", "swim"], detections=[WALKING, [], []]), named)[0] == 200
    assert labels_asked(named) == ["hop", "swim", "walk", "none"]
    assert ask(tmp_path, slot(), known)[0] == 200
    assert labels_asked(known) == ["stand", "walk", "none"]
    status, reply, _ = ask(tmp_path, slot(), foreign)
    assert (status, reply["error"]["message"].startswith("labels: needed")) == (422, True)


def test_a_schema_and_a_prompt_of_the_callers_own(tmp_path: Path) -> None:
    """They replace the product's; the labels of the prompt are then the schema's."""
    schema = {"type": "object", "properties": {"action": {"enum": ["sit", "none"]}}, "required": ["action"]}
    engine = ScriptedEngine('{"action":"sit"}')
    engine.labels = None
    status, reply, _ = ask(tmp_path, slot(schema=schema, prompt="Sitting? {labels} <|im_end|>"), engine)
    assert (status, reply["answer"]) == (200, {"action": "sit", "confirmed": None})
    assert engine.chats[0].schema == schema
    assert engine.chats[0].messages[1]["content"][-1]["text"] == "Sitting? sit < |im_end|>"


@pytest.mark.fault("B8")
async def test_the_engine_stops_when_the_caller_is_gone(tmp_path: Path) -> None:
    """A person who closes the page costs nothing more."""
    engine = ScriptedEngine([ScriptedEngine.HANG])
    with served(build_app(stage2_config(tmp_path), engine), until_ready=False) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(slot()).encode()
        head = ("POST /evaluate HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}")
        writer.write("\r\n".join((*head, "", "")).encode() + body)
        await writer.drain()
        assert await asyncio.to_thread(engine.next_event) == "began"
        writer.close()
        assert await asyncio.to_thread(engine.next_event) == "ended"
        await writer.wait_closed()


async def test_nothing_blocks_the_loop(tmp_path: Path) -> None:
    """Reading, decoding and encoding happen in threads; the loop serves others meanwhile."""
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a.jpg").write_bytes(picture())
    config = stage2_config(tmp_path)
    service = Stage2Service(config.stage2, EmulatedEngine(config.stage2), CollectorRegistry())
    images = [{"path": str(tmp_path / "media" / "a.jpg"), "time_s": 0}, *IMAGES]
    request = wire.EvaluateRequest.model_validate(slot(images=images))
    context = RequestContext(client="test", deadline_at=None, idempotency_key=None)
    with blockbuster_ctx():
        reply, _, _ = await evaluate(request, service, config, context)
    assert reply.attempts == 1
