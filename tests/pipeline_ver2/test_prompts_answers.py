"""Answers of Stage 2: what counts, what is kept, how sure the model was, and how often it is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from pipeline_ver2.config import PipelineConfig
from pipeline_ver2.errors import AnswerError, BadReply, ConfigError, EngineFailed, QueueFull, StageTimeout
from pipeline_ver2.prompts import MAX_SENDS, ask, build_messages, build_request, check_settings, read_answer, reply_text
from pipeline_ver2.wire import Detection
from tests.questions import GOOD, person, question, reply

SETTINGS = PipelineConfig()


def tokens(*spelled: tuple[str, float]) -> dict[str, Any]:
    """Log-probabilities in OpenAI's form."""
    content = [{"token": t, "logprob": math.log(p), "bytes": list(t.encode()), "top_logprobs": []} for t, p in spelled]
    return {"content": content}


def test_a_valid_answer_is_read() -> None:
    """The model's object, with `confirmed` added and no confidence where there are no log-probabilities."""
    answer = read_answer(reply(GOOD), question(), SETTINGS)
    assert answer.body == {"action": "walk", "description": "One person walks.", "confirmed": True}
    assert answer.confidence is None


@pytest.mark.parametrize(
    ("action", "findings", "confirmed"),
    [("walk", ((person(walk=0.8),),), True), ("stand", ((person(walk=0.8),),), False), ("walk", ((),), None)],
)
def test_confirmed_says_whether_stage_1_found_it_too(
    action: str, findings: tuple[tuple[Detection, ...], ...], *, confirmed: bool | None
) -> None:
    """True, false, or null where Stage 1 found nobody."""
    content = json.dumps({"action": action, "description": ""})
    assert read_answer(reply(content), question(findings=findings), SETTINGS).body["confirmed"] is confirmed


@pytest.mark.fault("B2")
@pytest.mark.parametrize(
    "content",
    [
        f"<think>It could be running.</think>\n{GOOD}",
        f"Hm, perhaps it walks.\n</think>\n\n{GOOD}",
        f"<think>\n\n</think>\n\n{GOOD}",
        f"```json\n{GOOD}\n```",
        f"<think>{{}}</think>```\n{GOOD}```\n",
    ],
    ids=["thinking", "only the closing tag", "empty thinking", "fenced", "thinking and fenced"],
)
def test_an_answer_is_found_behind_thinking_and_fences(content: str) -> None:
    """Thinking before the answer, a closing tag alone, a code fence: the answer counts."""
    assert read_answer(reply(content), question(), SETTINGS).body["action"] == "walk"


@pytest.mark.fault("B1", "B2")
@pytest.mark.parametrize(
    ("broken", "raw"),
    [
        (reply(None), ""),
        (reply(None, reasoning=GOOD), ""),
        (reply(""), ""),
        (reply("<think>It never ends"), "<think>It never ends"),
        (reply(GOOD, "length"), GOOD),
        (reply(GOOD, None), GOOD),
        (reply('{"action":"walk"' + " " * 900, "length"), '{"action":"walk"' + " " * 900),
        (reply('{"action":"walk","description":"' + "walks " * 40 + '"}'), None),
        (reply('{"action":"walk","description":NaN}'), None),
        (reply('{"action":"walk","description":"a","n":Infinity}'), None),
        (reply('{"action":"fly","description":""}'), None),
        (reply('{"action":"walk"}'), None),
        (reply('{"action":"walk","description":"","more":1}'), None),
        (reply('["walk"]'), '["walk"]'),
        (reply(f"{GOOD} {GOOD}"), f"{GOOD} {GOOD}"),
    ],
)
def test_whatever_is_no_answer_is_refused_and_kept(broken: dict[str, Any], raw: str | None) -> None:
    """Cut off, blank, repeated, not in the schema, not JSON: refused, and the text is kept to look at."""
    with pytest.raises(AnswerError) as caught:
        read_answer(broken, question(), SETTINGS)
    text = broken["choices"][0]["message"]["content"] or ""
    assert caught.value.raw_text == (text if raw is None else raw)


@pytest.mark.parametrize(
    "body", [{}, {"choices": None}, {"choices": []}, {"choices": [1]}, {"choices": [{"message": "hello"}]}]
)
def test_a_body_that_is_no_completion_is_no_answer(body: Mapping[str, Any]) -> None:
    """Neither function stumbles over it."""
    with pytest.raises(AnswerError):
        read_answer(body, question(), SETTINGS)
    with pytest.raises(AnswerError):
        reply_text(body)


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        ([('{"action":"', 0.9), ("walk", 0.5), ('","description":"One person walks."}', 0.1)], 0.5),
        ([('{"action":"', 0.9), ("wa", 0.5), ("lk", 0.4), ('","description":"One person walks."}', 0.1)], 0.2),
        ([('{"action":"wa', 0.5), ('lk","description":"One person walks."}', 0.4)], 0.2),
        ([('{"action":"', 0.9), ("wa", 0.5)], None),
    ],
    ids=["one token", "two tokens", "shared with the quotes", "tokens missing"],
)
def test_confidence_is_the_probability_of_the_actions_tokens(
    spelled: list[tuple[str, float]], expected: float | None
) -> None:
    """The product over the tokens that spell the action, whatever else they spell."""
    confidence = read_answer(reply(GOOD, logprobs=tokens(*spelled)), question(), SETTINGS).confidence
    assert confidence == (None if expected is None else pytest.approx(expected))


def test_confidence_counts_in_bytes() -> None:
    """Characters of several bytes before the action do not shift it."""
    content = '{"description":"gehört","action":"walk"}'
    spelled = tokens(('{"description":"geh', 0.9), ("ör", 0.9), ('t","action":"', 0.9), ("walk", 0.25), ('"}', 0.9))
    assert read_answer(reply(content, logprobs=spelled), question(), SETTINGS).confidence == pytest.approx(0.25)


@pytest.mark.parametrize(
    "logprobs",
    [None, {}, {"content": None}, {"content": [{}]}, {"content": [{"token": GOOD, "logprob": float("nan")}]}],
)
def test_useless_log_probabilities_give_no_confidence(logprobs: dict[str, Any] | None) -> None:
    """Null, never an error and never NaN."""
    assert read_answer(reply(GOOD, logprobs=logprobs), question(), SETTINGS).confidence is None


def test_prompt_and_schema_can_be_replaced() -> None:
    """A user's schema decides what counts; its prompt may name findings and labels, or not."""
    schema = {"type": "object", "properties": {"safe": {"type": "boolean"}}, "required": ["safe"]}
    settings = PipelineConfig(prompt="Is it safe? {findings}", answer_schema=schema)
    check_settings(settings)
    asked = question()
    assert build_messages(asked, settings)[1]["content"][-1]["text"].startswith("Is it safe? frame 1: walk 0.83")
    sent = build_request(asked, settings, model="m", max_tokens=1, send=1)["response_format"]["json_schema"]["schema"]
    assert sent == schema
    assert read_answer(reply('{"safe":true}'), asked, settings).body == {"safe": True, "confirmed": False}
    with pytest.raises(AnswerError, match="safe"):
        read_answer(reply('{"safe":"yes"}'), asked, settings)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (PipelineConfig(prompt="  "), "pipeline.prompt"),
        (PipelineConfig(answer_schema={"type": "nonsense"}), "pipeline.answer_schema"),
        (PipelineConfig(answer_schema={"type": "array"}), "pipeline.answer_schema"),
        (PipelineConfig(answer_schema={"type": "object", "$ref": "http://127.0.0.1:9/x"}), "is not in the schema"),
        (PipelineConfig(answer_schema={"type": "object", "$ref": "#/$defs/nope"}), "is not in the schema"),
        (PipelineConfig(answer_schema={"type": "object", "properties": {"a": {"pattern": "a+"}}}), "regular"),
    ],
)
def test_impossible_settings_stop_the_start(settings: PipelineConfig, key: str) -> None:
    """The message names the key."""
    with pytest.raises(ConfigError, match=key):
        check_settings(settings)


class Engine:
    """Answers with what it is given, one item per send."""

    def __init__(self, *says: dict[str, Any] | Exception) -> None:
        self.says = list(says)
        self.variants: list[int] = []

    async def send(self, body: dict[str, Any], variant: int) -> Mapping[str, Any]:
        """Take the next item."""
        assert body["temperature"] == (0.0 if variant == 1 else 0.7)
        self.variants.append(variant)
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


@pytest.mark.fault("B1", "B6")
@pytest.mark.parametrize(
    ("says", "variants", "ok"),
    [
        ([reply(GOOD)], [1], True),
        ([reply("{", "length"), reply(GOOD)], [1, 2], True),
        ([EngineFailed("died"), reply(GOOD)], [1, 1], True),
        ([StageTimeout("slow"), reply(GOOD)], [1, 1], True),
        ([reply("{"), reply("{")], [1, 2], False),
        ([EngineFailed("died"), EngineFailed("died again")], [1, 1], False),
        ([BadReply("nonsense"), reply("{")], [1, 1], False),
    ],
)
async def test_a_slot_is_sent_at_most_twice(says: list[Any], variants: list[int], *, ok: bool) -> None:
    """A bad answer is sampled anew, a lost send repeated as it was; a third send there never is."""
    engine = Engine(*says, reply(GOOD))
    asked = await ask(question(), SETTINGS, model="m", max_tokens=5, send=engine.send)
    assert engine.variants == variants
    assert len(variants) <= MAX_SENDS
    assert asked.attempts == len(variants)
    assert (asked.answer is not None) is ok
    assert (asked.problem is None) is ok


async def test_the_last_raw_text_is_kept() -> None:
    """A slot that failed still shows what the model said."""
    asked = await ask(
        question(), SETTINGS, model="m", max_tokens=5, send=Engine(reply("first"), reply("second", "length")).send
    )
    assert (asked.raw_text, asked.finish_reason) == ("second", "length")


async def test_waiting_is_no_send() -> None:
    """A full queue is the caller's to wait for: it comes straight out."""
    engine = Engine(QueueFull("full"))
    with pytest.raises(QueueFull):
        await ask(question(), SETTINGS, model="m", max_tokens=5, send=engine.send)
    assert engine.variants == [1]
