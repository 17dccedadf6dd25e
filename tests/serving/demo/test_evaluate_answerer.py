"""Measuring the answerer: figures from results, bars from figures, and one slot through the real model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline_ver2.config import PipelineConfig
from serving.demo import evaluate_answerer, seeds
from serving.demo.answerer_slots import KEYFRAME_INTERVAL, sample_slot, sample_take
from serving.demo.evaluate_answerer import Result, ask, find, main, summary
from serving.workers.postprocess import ClipOutput, failed
from serving.workers.stage1_model import ModelInfo


class FixedAnswerer:
    """Stands where the model stands; always writes the same text."""

    def __init__(self, text: str, reason: str = "stop") -> None:
        self.reply: dict[str, object] = {"choices": [{"message": {"content": text}, "finish_reason": reason}]}

    def answer(self, *_: object) -> dict[str, object]:
        """The reply, whatever is asked."""
        return self.reply


class BlindDetector:
    """Finds nothing, and keeps the clips it was shown."""

    info = ModelInfo("test", "cpu", "none", ("stand",), 16, (32, 32))

    def __init__(self) -> None:
        self.clips: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def detect(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        """Nothing for each clip."""
        self.clips = clips
        assert threshold == 0.25
        assert nms_iou == 0.45
        return [failed("blind", labels=1) for _ in clips]

    def close(self) -> None:
        """Nothing to do."""


def result(right: str, given: str | None, persons: int = 1) -> Result:
    """A result with nothing else of note."""
    return Result(right, given, persons, misled=given is None, confirmed_right=given == right, description_right=True)


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


@pytest.mark.parametrize("index", range(6))
def test_a_right_answer_is_seen_to_be_right(index: int) -> None:
    """The truth, written as an answer, is right in every respect."""
    slot = sample_slot(seeds.generator(seeds.TRAIN, index), (90, 160))
    found = ask(FixedAnswerer(slot.truth.answer), slot)  # type: ignore[arg-type]
    assert found.given == found.right == slot.truth.action
    assert found.confirmed_right
    assert found.description_right
    assert found.persons == len(slot.truth.actors)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("walk", "stop"), ('{"action":"fly","description":""}', "stop"), ('{"action":"walk","description":"', "length")],
)
def test_an_answer_that_does_not_fit_is_none(text: str, reason: str) -> None:
    """No JSON, an unknown action, a cut answer: no answer was given."""
    slot = sample_slot(seeds.generator(seeds.TRAIN, 0), (90, 160))
    found = ask(FixedAnswerer(text, reason), slot)  # type: ignore[arg-type]
    assert found.given is None
    assert not found.confirmed_right


def test_the_detector_sees_the_sixteen_frames_before_each_picture() -> None:
    """One clip for each different picture, squashed to the detector's size, its last frame the picture itself."""
    takes = (sample_take(seeds.generator(seeds.TRAIN, number), 16 / 9, two_share=0.3) for number in range(50))
    take = next(
        take for take in takes if len(set(take.numbers)) == 3 and take.source_fps == 30 and take.numbers[0] > 16
    )
    detector = BlindDetector()
    assert find(detector, take, (36, 64)) == ((), (), ())
    assert list(detector.clips.shape) == [3, 16, 32, 32, 3]
    # Grid frames are 11 apart, so the second clip begins with the frame 5 places before the first clip's end.
    assert np.array_equal(detector.clips[0][KEYFRAME_INTERVAL:], detector.clips[1][: 16 - KEYFRAME_INTERVAL])


def test_a_repeated_picture_is_looked_at_once() -> None:
    """The detector gets no clip twice, its findings count for both."""
    takes = (sample_take(seeds.generator(seeds.TRAIN, number), 16 / 9, two_share=0.3) for number in range(300))
    take = next(take for take in takes if len(set(take.numbers)) == 2)
    detector = BlindDetector()
    assert len(find(detector, take, (36, 64))) == 3
    assert len(detector.clips) == 2


@pytest.mark.slow
def test_the_command_prints_figures_and_bars(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object with both seed sets; it fails below the floor only."""
    code = main(["--slots", "6", "--json", "--detector", "/nowhere/detector.onnx"])
    report = json.loads(capsys.readouterr().out)
    assert report["answerer"]["slots"] == 6
    assert {"A", "B"} == set(report["answerer"]["findings simulated, one third wrong"])
    assert all({"name", "value", "op", "target", "ok"} == set(bar) for bar in report["bars"])
    floors = [bar for bar in report["bars"] if bar["name"].endswith("floor") or "JSON" in bar["name"]]
    assert code == int(not all(bar["ok"] for bar in floors))


def test_seed_sets_hold_enough_scenes() -> None:
    """Both measures of the usual length find seeds of their own, behind the detector's."""
    for seed_set in evaluate_answerer.SEED_SETS.values():
        assert len(seed_set) >= evaluate_answerer._FIRST_SEED + 2 * 10_000
    assert PipelineConfig().slot_frames == 3
