"""What the shipped models are, what they do, and what their card says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageTextToText

from pipeline_ver2.config import Stage1Config
from pipeline_ver2.main import resize
from serving.demo import seeds
from serving.demo.answerer import MODEL_FOLDER
from serving.demo.detection_metrics import FrameResult, count_at, match
from serving.demo.detector_data import ClipSample, sample_clip
from serving.demo.make_clip import FOLDER
from serving.demo.skeleton import LABELS
from serving.workers.stage1_model import EMBEDDED_MODEL, OnnxDetector

CARD = EMBEDDED_MODEL.parent / "README.md"


@pytest.fixture(scope="module")
def shipped() -> OnnxDetector:
    """The embedded detector."""
    return OnnxDetector(Stage1Config(threads=1, provider="cpu"))


def test_the_detector_keeps_its_contract(shipped: OnnxDetector) -> None:
    """The embedded file names its labels in the order of the world and takes clips of 16 frames at 224 pixels."""
    assert shipped.info.labels == LABELS
    assert (shipped.info.clip_length, shipped.info.image_size) == (16, (224, 224))
    assert EMBEDDED_MODEL.stat().st_size < 5_600_000


def test_the_detector_describes_itself() -> None:
    """Whoever opens the file elsewhere finds labels, clip length, image size and key frame in its metadata."""
    told = onnxruntime.InferenceSession(EMBEDDED_MODEL).get_modelmeta().custom_metadata_map
    assert json.loads(told["labels"]) == list(LABELS)
    assert (json.loads(told["clip_length"]), json.loads(told["image_size"])) == (16, [224, 224])
    assert told["keyframe"] == "last"


def test_the_answerer_is_a_model_of_plain_transformers() -> None:
    """The Auto class finds the architecture, loads every weight in bfloat16 and misses none."""
    automatic: Any = AutoModelForImageTextToText  # has no types
    model, told = automatic.from_pretrained(MODEL_FOLDER, dtype=torch.bfloat16, output_loading_info=True)
    assert type(model).__name__ == "Qwen3_5ForConditionalGeneration"
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]


def test_both_models_are_small() -> None:
    """Together they weigh at most 12 MB, card included."""
    assert sum(path.stat().st_size for path in _shipped_files()) <= 12e6


def test_the_card_names_what_lies_beside_it() -> None:
    """Every file, every action, both commands that made the models; nothing is left to fill in."""
    card = CARD.read_text(encoding="utf-8")
    missing = [path.name for path in _shipped_files() if path != CARD and f"`{path.name}`" not in card]
    assert missing == []
    assert [label for label in (*LABELS, "none") if label not in card] == []
    commands = ("train_detector", "train_answerer", "evaluate", "evaluate_videos", "compare_engines")
    assert [name for name in commands if f"python -m serving.demo.{name}" not in card] == []
    assert not {"TODO", "FILL", "XX"} & set(card.split())


def _shipped_files() -> Iterator[Path]:
    return (path for path in CARD.parent.rglob("*") if path.is_file())


def detect(detector: OnnxDetector, samples: list[ClipSample]) -> list[FrameResult]:
    """What is found in some clips, beside the truth."""
    outputs = detector.detect(np.stack([sample.frames for sample in samples]), 0.01, 0.45)
    return [
        FrameResult(
            boxes=output.findings.boxes,
            scores=output.findings.scores,
            true_boxes=np.array([person.box for person in sample.persons], np.float64).reshape(-1, 4),
            true_labels=np.array([LABELS.index(person.action) for person in sample.persons], np.int64),
        )
        for output, sample in zip(outputs, samples, strict=True)
    ]


@pytest.mark.slow
def test_the_detector_finds_people_of_held_out_scenes(shipped: OnnxDetector) -> None:
    """On unseen scenes most people are found with the right action, and few others."""
    samples = [sample_clip(seeds.generator(seeds.VALIDATION_B, 40_000 + number)) for number in range(40)]
    frames: list[FrameResult] = []
    for start in range(0, 40, 4):
        frames += detect(shipped, samples[start : start + 4])
    counts = count_at(frames, 0.25)
    assert counts.recall > 0.8
    assert counts.actions_right > 0.8
    assert counts.false_boxes_per_frame < 0.4


@pytest.mark.slow
def test_the_detector_finds_the_people_of_the_demo_clip(shipped: OnnxDetector) -> None:
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
