"""Running the product on the demo clip and on clips without people."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pipeline_ver2.config import Config
from pipeline_ver2.errors import StageError
from pipeline_ver2.results import Counts, KeyframeRecord, Results, SlotRecord, Timing, VideoRecord
from pipeline_ver2.wire import Detection, LabelScore
from serving.bench.bars import passed
from serving.demo import evaluate_clips as module
from serving.demo.evaluate_clips import bars_of, demo_figures, empty_figures, evaluate_clips
from serving.demo.make_clip import FOLDER
from tests.serving.demo.knowing import blind
from tests.stand_ins import Stages, answer

SLOTS: list[dict[str, Any]] = json.loads((FOLDER / "clip_truth.json").read_text())["slots"]
SOMEBODY = Detection(box=(0, 0, 9, 9), labels=(LabelScore(name="walk", score=0.5),))


def results_of(answers: Sequence[str | None], boxes: Sequence[int] = (0,)) -> Results:
    """Results with these answers (None: no valid one), and so many boxes at keyframes half a second apart."""
    keyframes = tuple(
        KeyframeRecord(key_index=number + 1, time_s=number / 2, state="ok", detections=(SOMEBODY,) * count)
        for number, count in enumerate(boxes)
    )
    slots = tuple(
        SlotRecord(
            index=index, key_indices=(1,), start_s=index, end_s=index, state="failed" if action is None else "ok",
            answer=None if action is None else {"action": action},
        )
        for index, action in enumerate(answers)
    )  # fmt: skip
    return Results(
        state="succeeded", source="test",
        video=VideoRecord(width=64, height=64, duration_s=1, fps=30, rotation=0, timestamps="container"),
        models={}, keyframes=keyframes, slots=slots, counts=Counts.model_validate(
            {name: {} if name == "lost" else 0 for name in Counts.model_fields}
        ),
        timing=Timing(wall_s=1, first_answer_s=None, stage1_ended_s=None, stage2_began_s=None, busy_s={}), warnings=(),
    )  # fmt: skip


def test_the_truth_of_the_demo_clip_is_all_right() -> None:
    """Thirteen of thirteen, and each notable action is found where it is."""
    figures = demo_figures(results_of([slot["action"] for slot in SLOTS]), SLOTS)
    assert figures["slots right"] == figures["slots"] == 13
    assert figures["slots in which it was found"] == {"wave": 2, "run": 2, "fall": 3}


def test_an_action_at_the_wrong_time_is_not_found() -> None:
    """A fall answered elsewhere is no fall found; no answer is no right answer."""
    answers = [None if slot["action"] == "fall" else "fall" for slot in SLOTS]
    figures = demo_figures(results_of(answers), SLOTS)
    assert figures["slots right"] == 0
    assert set(figures["slots in which it was found"].values()) == {0}
    assert figures["answers"][-1]["given"] is None


def test_every_box_of_an_empty_clip_is_false() -> None:
    """Boxes are counted in the second they are in, and every second has a count."""
    figures = empty_figures(results_of(["none", "none", None, "walk"], [0, 1, 0, 0, 2, 0, 0]))
    assert figures["false boxes by second"] == [1, 0, 2, 0]
    assert figures["false boxes"] == 3
    assert figures["share of none"] == 0.5


def good() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Figures that just reach the bars."""
    demo = {"slots right": 12, "slots in which it was found": {"wave": 1, "run": 1, "fall": 1}}
    return demo, {label: {"false boxes": 1, "share of none": 0.9} for label in ("A", "B")}


@pytest.mark.parametrize(
    ("place", "value"),
    [("slots right", 11), ("wave", 0), ("run", 0), ("fall", 0), ("false boxes", 2), ("share of none", 0.8)],
)
def test_each_bar_can_be_missed(place: str, value: float) -> None:
    """Figures at the bars pass; each of them a little worse does not, in one of the sets too."""
    demo, empty = good()
    assert passed(bars_of(demo, empty))
    for part in (demo, demo["slots in which it was found"], empty["B"]):
        if place in part:
            part[place] = value
    assert sum(not bar.ok for bar in bars_of(demo, empty)) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_clips_go_through_the_whole_product(
    stages: Stages, config: Config, tmp_path: Path, tell: Callable[[str], None], heard: list[str]
) -> None:
    """An answerer that sees nobody anywhere is right on the empty clips only, each of whose seconds is looked at."""

    async def rule(_request: web.Request, _key: str, _time: int) -> web.StreamResponse:
        return answer("none")

    stages.stage2.rule = rule
    figures, bars = await evaluate_clips(config, tmp_path, tell)
    assert figures["demo clip"]["slots right"] == 0
    for found in figures["without people"].values():
        assert found["slots"] == 10
        assert found["keyframes"] == 30
        assert found["false boxes by second"] == [0] * 11
        assert found["share of none"] == 1.0
    assert [bar.ok for bar in bars] == [False, False, False, False, True, True]
    assert len(heard) == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_failed_keyframe_ends_the_measurement(
    stages: Stages, config: Config, tmp_path: Path, tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No box on a keyframe the detector failed on is not counted as none."""
    stages.stage1.rule = blind(status=1)
    monkeypatch.setattr(module, "SEED_SETS", {})
    with pytest.raises(StageError, match=r"clip\.mp4: keyframe 11"):
        await evaluate_clips(config, tmp_path, tell)
