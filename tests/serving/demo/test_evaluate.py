"""The evaluation command, and what the shipped detector does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline_ver2.config import Stage1Config
from pipeline_ver2.findings import ClipFindings
from pipeline_ver2.main import resize
from serving.demo import evaluate, seeds
from serving.demo.bars import Bar
from serving.demo.detection_metrics import FrameResult, count_at, match
from serving.demo.detector_data import sample_clip
from serving.demo.evaluate_detector import detect, measure
from serving.demo.make_clip import FOLDER
from serving.demo.skeleton import LABELS
from serving.workers.postprocess import ClipOutput
from serving.workers.stage1_model import EMBEDDED_MODEL, ModelInfo, OnnxDetector


class Teacher:
    """A detector that was told the truth of the clips it will see, in order; `blind`: it finds nobody."""

    info = ModelInfo("test", "test", "test", LABELS, 16, (224, 224))

    def __init__(self, clips: int, rate: float, *, blind: bool = False) -> None:
        self._answers = []
        for number in range(clips):
            generator = seeds.generator(seeds.VALIDATION_A, number)
            persons = () if blind else sample_clip(generator, source_fps=rate, height=360).persons
            boxes = np.array([person.box for person in persons], np.float32).reshape(-1, 4)
            scores = np.array([[label == person.action for label in LABELS] for person in persons], np.float32)
            self._answers.append(ClipOutput(ClipFindings(boxes, scores.reshape(-1, len(LABELS)))))

    def detect(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        """The next truths."""
        return [self._answers.pop(0) for _ in clips]

    def close(self) -> None:
        """Nothing to do."""


def test_knowing_the_truth_is_perfect() -> None:
    """A detector that says the truth gets the best figures there are."""
    figures = measure(Teacher(10, 30.0), seeds.VALIDATION_A, 10, 30.0)
    assert (figures["map50"], figures["recall"], figures["actions_right"]) == (1, 1, 1)
    assert figures["false_boxes_per_frame"] == 0
    assert figures["people"] > 5


def test_finding_nobody_is_worthless() -> None:
    """A detector that finds nobody gets zero, and false boxes too."""
    figures = measure(Teacher(6, 30.0, blind=True), seeds.VALIDATION_A, 6, 30.0)
    assert (figures["map50"], figures["recall"], figures["false_boxes_per_frame"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("value", "op", "ok"), [(0.8, ">=", True), (0.79, ">=", False), (0.8, "<=", True), (0.81, "<=", False)]
)
def test_bar(value: float, op: Literal[">=", "<="], ok: bool) -> None:  # noqa: FBT001
    """A bar holds up to and including its target."""
    assert Bar("figure", value, op, 0.8).described() == {
        "name": "figure", "value": value, "op": op, "target": 0.8, "ok": ok,
    }  # fmt: skip


@pytest.mark.slow
def test_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the figures of both seed sets and the bars; a good model gives exit code 0."""
    code = evaluate.main(["--only", "detector", "--clips", "12", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert set(report["detector"]["30 fps"]) == {"A", "B"}
    assert "answerer" not in report
    assert {"name", "value", "op", "target", "ok"} == set(report["bars"][0])
    assert code == int(not all(bar["ok"] for bar in report["bars"] if "floor" in bar["name"]))


@pytest.mark.slow
def test_command_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--json` there is a line for each figure, and one for each bar that says whether it holds."""
    evaluate.main(["--only", "detector", "--clips", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("detector, 15 fps, B, map50: ") for line in lines)
    assert sum(line.startswith(("ok  ", "MISS")) for line in lines) == 6


@pytest.fixture(scope="module")
def shipped() -> OnnxDetector:
    """The embedded detector."""
    return OnnxDetector(Stage1Config(threads=1, provider="cpu"))


def test_shipped_detector_keeps_its_contract(shipped: OnnxDetector) -> None:
    """The embedded file names its labels in the order of the world and takes clips of 16 frames at 224 pixels."""
    assert shipped.info.labels == LABELS
    assert (shipped.info.clip_length, shipped.info.image_size) == (16, (224, 224))
    assert EMBEDDED_MODEL.stat().st_size < 5_600_000


@pytest.mark.slow
def test_shipped_detector_finds_people_of_held_out_scenes(shipped: OnnxDetector) -> None:
    """On unseen scenes most people are found with the right action, and few others."""
    samples = [sample_clip(seeds.generator(seeds.VALIDATION_B, 50_000 + number)) for number in range(40)]
    frames: list[FrameResult] = []
    for start in range(0, 40, 4):
        frames += detect(shipped, samples[start : start + 4])
    counts = count_at(frames, 0.25)
    assert counts.recall > 0.8
    assert counts.actions_right > 0.8
    assert counts.false_boxes_per_frame < 0.4


@pytest.mark.slow
def test_shipped_detector_finds_the_people_of_the_demo_clip(shipped: OnnxDetector) -> None:
    """At the key frames of the demo clip people are found where the truth has them, mostly with their action."""
    truth = json.loads((FOLDER / "clip_truth.json").read_text())["frames"]
    small = _small_frames(FOLDER / "clip.mp4")
    found = right = people = 0
    for last in range(21, 419, 22):
        clip = np.stack(small[last - 15 : last + 1])[None]
        findings = shipped.detect(clip, 0.25, 0.45)[0].findings
        persons = truth[last]["persons"]
        boxes = np.array([person["box"] for person in persons]).reshape(-1, 4) / (640, 360, 640, 360)
        hits = match(findings.boxes, boxes)
        people, found = people + len(persons), found + int((hits >= 0).sum())
        for hit, scores in zip(hits, findings.scores, strict=True):
            right += int(hit >= 0 and LABELS[int(scores.argmax())] == persons[hit]["action"])
    assert found >= 0.8 * people
    assert right >= 0.7 * people


def _small_frames(path: Path) -> list[NDArray[np.uint8]]:
    """The frames of a video as Stage 1 gets them."""
    with av.open(str(path)) as container:
        return [
            resize(np.asarray(frame.to_ndarray(format="rgb24"), np.uint8), (224, 224))
            for frame in container.decode(video=0)
        ]
