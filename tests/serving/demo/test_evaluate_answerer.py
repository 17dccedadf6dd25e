"""Measuring an answerer over HTTP: figures from results, bars from figures, and stand-ins that know or do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from pipeline_ver2.config import Config, PipelineConfig
from pipeline_ver2.errors import AnswerError, BadReply
from pipeline_ver2.prompts import Answer, Asked, Question, read_answer
from serving.bench.bars import passed
from serving.demo import seeds
from serving.demo.answerer_slots import Truth, question_of, sample_slot
from serving.demo.evaluate_answerer import (
    DETECTED,
    SIMULATED,
    Result,
    bars_of,
    evaluate_answerer,
    judge,
    summary,
)
from serving.demo.held_out import SEED_SETS, draw_slot
from tests.questions import reply
from tests.serving.demo.knowing import blind, knowing_slots
from tests.stand_ins import Stages, completion

Tell = Callable[[str], None]
SETTINGS = PipelineConfig()


def result(right: str, given: str | None, persons: int = 1) -> Result:
    """A result with nothing else of note."""
    return Result(
        right, given, persons, misled=given is None, valid=given is not None, confirmed_right=given == right,
        description_right=True,
    )  # fmt: skip


def asked_and_true(index: int) -> tuple[Question, Truth]:
    """A small slot's question and truth."""
    slot = sample_slot(seeds.generator(seeds.TRAIN, index), (90, 160))
    return question_of(slot, SETTINGS), slot.truth


def answered(text: str, question: Question, attempts: int = 1) -> Asked:
    """What asking gives for a text."""
    try:
        answer: Answer | None = read_answer(reply(text), question, SETTINGS)
        problem = None
    except AnswerError as error:
        answer, problem = None, error
    return Asked(answer, problem, text, "stop", None, attempts)


def test_shares_count_right_actions_by_action_and_by_people() -> None:
    """An invalid answer is a wrong one; groups nobody is in have no share."""
    figures = summary(
        [result("walk", "walk"), result("walk", None), result("fall", "fall", 2), result("none", "run", 0)]
    )
    assert figures["right"] == 0.5
    assert figures["valid"] == 0.75
    assert figures["right by action"]["walk"] == 0.5
    assert figures["right by action"]["fall"] == 1.0
    assert figures["right by action"]["jump"] is None
    assert figures["right by people"] == {"0": 0.0, "1": 0.5, "2": 1.0}
    assert figures["right where the findings lack the action"] == 0.0
    assert figures["given for right"]["walk"] == {"walk": 1, "invalid": 1}
    assert figures["given for right"]["none"] == {"run": 1}


def test_no_results_are_no_success() -> None:
    """Without slots nothing is right."""
    assert summary([])["right"] == 0.0


@pytest.mark.parametrize("index", range(6))
def test_a_right_answer_is_seen_to_be_right(index: int) -> None:
    """The truth, written as an answer, is right in every respect."""
    question, truth = asked_and_true(index)
    found = judge(answered(truth.answer, question), question, truth)
    assert found.given == found.right == truth.action
    assert found.valid
    assert found.confirmed_right
    assert found.description_right
    assert found.persons == len(truth.actors)


@pytest.mark.parametrize("text", ["walk", '{"action":"fly","description":""}', '{"action":"walk","description":"'])
def test_an_answer_that_does_not_fit_is_none(text: str) -> None:
    """No JSON, an unknown action, a cut answer: no answer was given."""
    question, truth = asked_and_true(0)
    found = judge(answered(text, question, 2), question, truth)
    assert found.given is None
    assert not found.valid
    assert not found.confirmed_right


def test_an_answer_at_the_second_send_is_not_valid() -> None:
    """The product takes it, so it may be right; but the first one was no valid JSON."""
    question, truth = asked_and_true(0)
    found = judge(answered(truth.answer, question, 2), question, truth)
    assert found.given == truth.action
    assert not found.valid


async def test_knowing_the_truth_is_perfect(stages: Stages, config: Config, tell: Tell) -> None:
    """An answerer that says the truth is right in both measures, which ask about the same pictures."""

    def truth_of(number: int, time: int) -> Truth:
        return draw_slot(list(SEED_SETS.values())[time], number, config.pipeline, 1, (8, 8)).truth

    stages.stage2.rule = knowing_slots(truth_of)
    figures, bars = await evaluate_answerer(config, 3, tell)
    for name in (DETECTED, SIMULATED):
        assert [figures[name][label]["right"] for label in SEED_SETS] == [1, 1]
        assert [figures[name][label]["valid"] for label in SEED_SETS] == [1, 1]
        assert figures[name]["spread"]["right"] == 0
    assert all(bar.ok for bar in bars if "one person" not in bar.name)
    assert len(set(stages.stage2.keys)) == len(stages.stage2.keys) == 12
    texts = [body["messages"][1]["content"][-1]["text"] for body in stages.stage2.bodies]
    blind_to = "Detector findings: frame 1: nobody; frame 2: nobody; frame 3: nobody."
    assert sum(text.startswith(blind_to) for text in texts) >= 6


async def test_nonsense_is_never_right(stages: Stages, config: Config, tell: Tell) -> None:
    """An answerer without JSON is asked twice, has nothing valid and nothing right."""

    async def rule(_request: web.Request, _key: str, _time: int) -> web.StreamResponse:
        return completion("walk, I think")

    stages.stage2.rule = rule
    figures, bars = await evaluate_answerer(config, 1, tell)
    assert (figures[DETECTED]["A"]["right"], figures[DETECTED]["A"]["valid"]) == (0, 0)
    assert not any(bar.ok for bar in bars)
    assert json.dumps(figures)


async def test_a_clip_that_fails_ends_the_measurement(stages: Stages, config: Config, tell: Tell) -> None:
    """Without the detector's findings a slot is not what the product would ask."""
    stages.stage1.rule = blind(status=1)
    with pytest.raises(BadReply, match="status 1"):
        await evaluate_answerer(config, 1, tell)


def sets_of(**worse: Any) -> dict[str, Any]:  # noqa: ANN401 - figures of all kinds
    """Good figures of both sets, but for one of set A."""
    good = {"right": 0.95, "valid": 1.0, "confirmed right": 0.95, "right by people": {"1": 0.96}}
    return {"A": {**good, **worse}, "B": good}


def test_both_sets_must_reach_the_bars() -> None:
    """A bar holds the worse set: a good one does not make up for it."""
    assert passed(bars_of(sets_of()))
    assert [bar.ok for bar in bars_of(sets_of(right=0.89))] == [False, True, True, True]
    assert [bar.ok for bar in bars_of(sets_of(**{"right by people": {"1": 0.94}}))] == [True, False, True, True]
    assert [bar.ok for bar in bars_of(sets_of(**{"right by people": {"1": None}}))] == [True, False, True, True]
    assert [bar.ok for bar in bars_of(sets_of(valid=0.998))] == [True, True, False, True]
    assert [bar.ok for bar in bars_of(sets_of(**{"confirmed right": 0.5}))] == [True, True, True, False]
