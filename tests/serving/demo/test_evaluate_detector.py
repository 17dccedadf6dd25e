"""Measuring a detector over HTTP: a stand-in that knows the truth, one that sees nothing, and broken ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.errors import BadReply, ConfigError
from serving.bench.bars import passed
from serving.demo.evaluate_detector import FRAME_RATES, bars_of, evaluate_detector
from serving.demo.held_out import SEED_SETS, draw_clip
from serving.demo.scene import Person
from tests import stand_ins
from tests.serving.demo.knowing import blind, knowing_clips
from tests.stand_ins import Stages

Tell = Callable[[str], None]


def who(number: int, time: int) -> Sequence[Person]:
    """The truth of a clip: sets are asked for one after the other, at one frame rate, then at the other."""
    return draw_clip(list(SEED_SETS.values())[time % 2], number, FRAME_RATES[time // 2]).persons


async def test_knowing_the_truth_is_perfect(stages: Stages, config: Config, tell: Tell, heard: list[str]) -> None:
    """A detector that says the truth gets the best figures there are, and reaches every bar."""
    stages.stage1.rule = knowing_clips(who)
    figures, bars = await evaluate_detector(config, 5, tell)
    for rate in ("30 fps", "15 fps"):
        for label in SEED_SETS:
            found = figures[rate][label]
            assert (found["map50"], found["precision"], found["recall"], found["actions_right"]) == (1, 1, 1, 1)
            assert found["false_boxes_per_frame"] == 0
            assert found["people"] > 2
        assert figures[rate]["spread"]["map50"] == 0
    assert passed(bars)
    assert heard[0] == "detector, 30 fps, set A, clips: 5 of 5"
    assert {tuple(clips.shape) for clips in stages.stage1.bodies} == {(1, 16, 224, 224, 3)}


async def test_finding_nobody_is_worthless(config: Config, tell: Tell) -> None:
    """A detector that finds nobody gets zero, without false boxes."""
    figures, bars = await evaluate_detector(config, 3, tell)
    found = figures["30 fps"]["A"]
    assert (found["map50"], found["recall"], found["precision"], found["false_boxes_per_frame"]) == (0, 0, 0, 0)
    assert [bar.ok for bar in bars] == [False, True, False, True]


async def test_no_two_requests_share_a_key(stages: Stages, config: Config, tell: Tell) -> None:
    """A daemon that replays replies by key would otherwise answer for another clip."""
    await evaluate_detector(config, 2, tell)
    assert len(set(stages.stage1.keys)) == len(stages.stage1.keys) == 8


async def test_a_clip_that_fails_ends_the_measurement(stages: Stages, config: Config, tell: Tell) -> None:
    """A failed clip is not left out silently."""
    stages.stage1.rule = blind(status=1)
    with pytest.raises(BadReply, match="status 1"):
        await evaluate_detector(config, 2, tell)


async def test_other_labels_are_refused(config: Config, tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A detector of another world is not asked anything."""
    monkeypatch.setattr(stand_ins, "LABELS", ("sit",))
    with pytest.raises(ConfigError, match="sit"):
        await evaluate_detector(config, 1, tell)


def sets_of(**worse: float) -> dict[str, Any]:
    """Good figures of both sets, but for one of set B."""
    good = {"map50": 0.95, "false_boxes_per_frame": 0.05}
    return {f"{rate:g} fps": {"A": good, "B": {**good, **worse}} for rate in FRAME_RATES}


def test_both_sets_must_reach_the_bars() -> None:
    """A bar holds the worse set: a good one does not make up for it."""
    assert passed(bars_of(sets_of()))
    assert [bar.value for bar in bars_of(sets_of(map50=0.91))] == [0.91, 0.05, 0.91, 0.05]
    assert [bar.ok for bar in bars_of(sets_of(map50=0.91))] == [False, True, True, True]
    assert [bar.ok for bar in bars_of(sets_of(false_boxes_per_frame=0.16))] == [True, False, True, False]
