"""Measures an answerer on held-out slots, through the orchestrator's own clients and prompt.

Each slot is drawn once and asked about twice: with what the detector finds in it, over HTTP too, and with simulated
findings, one third of them wrong, which shows that the answerer looks at the pictures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline_ver2.config import Config
from pipeline_ver2.prompts import NOBODY, Asked, Question
from pipeline_ver2.stage_clients import AnswererInfo, DetectorInfo, Stage1Client, Stage2Client
from serving.bench.bars import Bar
from serving.demo.answerer_slots import Findings, Truth
from serving.demo.held_out import SEED_SETS, HeldOutSlot, draw_slot
from serving.demo.measuring import Tell, check_labels, drawn_and_asked, new_run, spread, telling, whole
from serving.demo.skeleton import LABELS

DETECTED, SIMULATED = "findings of the detector", "findings simulated, one third wrong"
INVALID = "invalid"
GOAL, ALONE_GOAL = 0.90, 0.95
RIGHT_ACTIONS = (*LABELS, NOBODY)
GIVEN_ACTIONS = (*RIGHT_ACTIONS, INVALID)


@dataclass(frozen=True, slots=True)
class Result:
    """One answered slot: the right action, the given one (None: no valid answer), and what goes with it.

    `valid` is said of the first answer, before the product asks again.
    """

    right: str
    given: str | None
    persons: int
    misled: bool
    valid: bool
    confirmed_right: bool
    description_right: bool


async def evaluate_answerer(config: Config, slots: int, tell: Tell) -> tuple[dict[str, Any], list[Bar]]:
    """Measure the Stage 2 of a configuration on both seed sets; both stages must be up.

    Args:
        config: Where the stages are.
        slots: How many slots of each set.
        tell: Is told of progress.

    Returns:
        `(figures, bars)`; bars hold the worse of the seed sets, with the detector's findings.

    Raises:
        ConfigError: The detector has other labels than the demo world.
        StageError, RequestError: A stage is away, or refused.
    """
    retry_for_s = config.pipeline.retry_for_s
    async with (
        Stage1Client(config.stage1, retry_for_s=retry_for_s) as stage1,
        Stage2Client(config.stage2, config.pipeline) as stage2,
    ):
        detector, answerer = await stage1.describe(), await stage2.describe()
        check_labels(detector)
        asking = Asking(config, stage1, stage2, detector, answerer)
        sets = {
            label: await asking.measure(seed_set, slots, telling(f"answerer, set {label}, slots", tell))
            for label, seed_set in SEED_SETS.items()
        }
    figures: dict[str, dict[str, Any]] = {}
    for name in (DETECTED, SIMULATED):
        found = {label: summary(results[name]) for label, results in sets.items()}
        figures[name] = {**found, "spread": spread(found)}
    return {"slots": slots, "model": answerer.name, "engine": answerer.engine, **figures}, bars_of(figures[DETECTED])


@dataclass(frozen=True, slots=True)
class Asking:
    """Both stages, and how a slot goes through them."""

    config: Config
    stage1: Stage1Client
    stage2: Stage2Client
    detector: DetectorInfo
    answerer: AnswererInfo

    async def measure(self, seed_set: range, slots: int, tell: Tell) -> dict[str, list[Result]]:
        """The results of a seed set's slots, by measure."""
        run, settings = new_run(), self.config.pipeline

        def draw(number: int) -> HeldOutSlot:
            return draw_slot(seed_set, number, settings, self.detector.clip_length, self.detector.image_size)

        async def ask(number: int, slot: HeldOutSlot) -> tuple[Result, Result]:
            findings = await self._find(slot, f"{run}/clips-{number}")
            asked = replace(slot.question, findings=findings, labels=self.detector.labels)
            detected = await self._ask(asked, slot.truth, f"{run}/slot-{number}-detected")
            return detected, await self._ask(slot.question, slot.truth, f"{run}/slot-{number}-simulated")

        results = await drawn_and_asked(range(slots), draw, ask, tell)
        return {DETECTED: [first for first, _ in results], SIMULATED: [second for _, second in results]}

    async def _find(self, slot: HeldOutSlot, key: str) -> Findings:
        """What the detector says of each picture, over the product's threshold, in pixels of the video."""
        found = await self.stage1.detect(list(slot.clips), key=key)
        threshold, labels = self.config.stage1.threshold, self.detector.labels
        each = [whole(findings).detections(labels, threshold=threshold, size=slot.size) for findings in found.clips]
        return tuple(each[index] for index in slot.clip_of)

    async def _ask(self, question: Question, truth: Truth, key: str) -> Result:
        asked, _ = await self.stage2.evaluate(question, model=self.answerer.name, key=key)
        return judge(asked, question, truth)


def judge(asked: Asked, question: Question, truth: Truth) -> Result:
    """What came back for a question beside what is true."""
    names = {label.name for found in question.findings for person in found for label in person.labels}
    body = {} if asked.answer is None else asked.answer.body
    return Result(
        right=truth.action,
        given=body.get("action"),
        persons=len(truth.actors),
        misled=bool(names) and truth.action not in names,
        valid=asked.answer is not None and asked.attempts == 1,
        confirmed_right=bool(body) and body["confirmed"] == (truth.action in names if names else None),
        description_right=body.get("description") == truth.description,
    )


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Shares over results, and how often which action was given for which.

    Shares: right actions in all, by action, by number of people; valid first answers; right `confirmed`.
    """
    by_action = {name: [result for result in results if result.right == name] for name in RIGHT_ACTIONS}
    by_people = {str(count): [result for result in results if result.persons == count] for count in range(3)}
    return {
        "right": _share(results) or 0.0,
        "right by action": {name: _share(chosen) for name, chosen in by_action.items()},
        "right by people": {count: _share(chosen) for count, chosen in by_people.items()},
        "right where the findings lack the action": _share([result for result in results if result.misled]),
        "valid": _mean([result.valid for result in results]),
        "confirmed right": _mean([result.confirmed_right for result in results]),
        "whole answer right": _mean([result.given == result.right and result.description_right for result in results]),
        "given for right": {
            name: dict(Counter(result.given or INVALID for result in chosen)) for name, chosen in by_action.items()
        },
    }


def bars_of(sets: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    """The bars, which both seed sets must reach."""
    right, valid, confirmed = (
        min(float(sets[label][key]) for label in SEED_SETS) for key in ("right", "valid", "confirmed right")
    )
    alone = min(float(sets[label]["right by people"]["1"] or 0.0) for label in SEED_SETS)
    return [
        Bar("answerer right actions, worse set", right, ">=", GOAL),
        Bar("answerer right actions, one person, worse set", alone, ">=", ALONE_GOAL),
        Bar("answerer valid JSON, worse set", valid, ">=", 1.0),
        Bar("answerer right confirmed, worse set", confirmed, ">=", GOAL),
    ]


def _share(results: Sequence[Result]) -> float | None:
    """Share of right actions; None without results."""
    return _mean([result.given == result.right for result in results]) if results else None


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / max(1, len(values))
