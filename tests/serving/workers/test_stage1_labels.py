"""Class names of a detector."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.errors import ConfigError
from serving.workers.stage1_labels import labels_of_file, read_labels
from serving.workers.stage1_model import OnnxDetector
from tests import tiny_detector as tiny

MakeConfig = Callable[..., Config]

UCF101_24 = (
    *("Basketball", "BasketballDunk", "Biking", "CliffDiving", "CricketBowling", "Diving", "Fencing"),
    *("FloorGymnastics", "GolfSwing", "HorseRiding", "IceDancing", "LongJump", "PoleVault", "RopeClimbing"),
    *("SalsaSpin", "SkateBoarding", "Skiing", "Skijet", "SoccerJuggling", "Surfing", "TennisSwing"),
    *("TrampolineJumping", "VolleyballSpiking", "WalkingWithDog"),
)
AVA_80 = {str(number): f"AVA action {number}" for number in range(1, 81)}  # AVA counts its classes from 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n\n b \nc\n", ("a", "b", "c")),
        ("\ufeffa\r\nb\r\nc", ("a", "b", "c")),
        ('["x y", "b", "c"]', ("x y", "b", "c")),
        ('{"0": "a", "2": "c", "1": "b"}', ("a", "b", "c")),
        ('{"1": "a", "3": "c", "2": "b"}', ("a", "b", "c")),
        ('{"1": "only"}', ("only",)),
    ],
)
def test_a_label_file_is_text_or_json(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    """One name a line, a JSON list, or a JSON object that counts from 0 or from 1, in any order."""
    (tmp_path / "labels").write_text(text, encoding="utf-8")
    assert labels_of_file(tmp_path / "labels") == expected


@pytest.mark.fault("A2")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one"),
        ("a\nb\na", "none twice"),
        ("[1, 2, 3]", "list of names"),
        ('["a", ""]', "list of names"),
        ('["a", ', "not valid JSON"),
        ("{}", "at least one"),
        ('{"0": "a", "2": "b"}', "index 1 is missing"),
        ('{"1": "a", "4": "b"}', "index 2 is missing"),
        ('{"2": "a", "3": "b"}', "index 1 is missing"),
        ('{"00": "a"}', "index 1 is missing"),
        ('{"a": 0, "b": 1}', "index 1 is missing"),
        ('{"0": ["a"]}', "list of names"),
    ],
)
def test_a_label_file_that_leaves_doubt_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """Gaps, doubles, other types and broken JSON are refused, and the message names key and file."""
    (tmp_path / "labels").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as caught:
        labels_of_file(tmp_path / "labels")
    assert f"stage1.labels_path: {tmp_path / 'labels'}" in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_label_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    """Missing and undecodable files are refusals with the key."""
    path = tmp_path / "labels"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"stage1\.labels_path: .* cannot be read"):
        labels_of_file(path)


def test_the_file_goes_before_the_metadata(tmp_path: Path) -> None:
    """The configured file wins; without it the metadata counts, a list or an object; with neither it is a refusal."""
    (tmp_path / "labels").write_text("a\nb", encoding="utf-8")
    assert read_labels(tmp_path / "labels", {"labels": '["x", "y"]'}) == ("a", "b")
    assert read_labels(None, {"labels": '["x", "y"]'}) == ("x", "y")
    assert read_labels(None, {"labels": '{"0": "x", "1": "y"}'}) == ("x", "y")
    with pytest.raises(ConfigError, match=r"stage1\.labels_path: must be set"):
        read_labels(None, {})
    with pytest.raises(ConfigError, match=r"stage1\.model_path: the `labels` of its metadata is not valid JSON"):
        read_labels(None, {"labels": "x, y"})


@pytest.mark.fault("A2")
@pytest.mark.parametrize("kind", ["text", "list", "object"])
def test_the_24_names_of_ucf_start_with_class_0(stage1_config: MakeConfig, tmp_path: Path, kind: str) -> None:
    """The first score is Basketball's, the second BasketballDunk's, the last WalkingWithDog's, in every form."""
    texts = {
        "text": "\n".join(UCF101_24),
        "list": json.dumps(UCF101_24),
        "object": json.dumps(dict(enumerate(UCF101_24))),
    }
    assert _best_names(stage1_config, tmp_path, texts[kind], 24) == ["Basketball", "BasketballDunk", "WalkingWithDog"]


@pytest.mark.fault("A2")
def test_avas_number_1_is_class_0(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """AVA counts from 1: the first score is that of its action 1, the last that of its action 80."""
    expected = ["AVA action 1", "AVA action 2", "AVA action 80"]
    assert _best_names(stage1_config, tmp_path, json.dumps(AVA_80), 80) == expected
    assert _best_names(stage1_config, tmp_path, "\n".join(AVA_80.values()), 80) == expected


@pytest.mark.fault("A2")
def test_the_60_actions_ava_scores_are_no_list_of_80(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """AVA's evaluation uses 60 of its 80 numbers; such a list has gaps and another length, and is refused."""
    used = {number: name for number, name in AVA_80.items() if int(number) not in range(16, 36)}
    with pytest.raises(ConfigError, match="index 16 is missing"):
        _best_names(stage1_config, tmp_path, json.dumps(used), 80)
    with pytest.raises(ConfigError, match=r"stage1\.labels_path: 60 labels, but model\.onnx has 80 classes"):
        _best_names(stage1_config, tmp_path, "\n".join(used.values()), 80)


def _best_names(stage1_config: MakeConfig, folder: Path, labels: str, classes: int) -> list[str]:
    """Names a detector of so many classes gives to red (its first score), green (second) and blue (last)."""
    (folder / "labels").write_text(labels, encoding="utf-8")
    path = tiny.write_detector(folder / "model.onnx", labels=None, classes=classes)
    config = stage1_config(model_path=str(path), labels_path=str(folder / "labels")).stage1
    detector = OnnxDetector(config)
    clips = np.stack([tiny.clip_of(colour) for colour in (tiny.RED, tiny.GREEN, tiny.BLUE)])
    outputs = detector.detect(clips, 0.25, 0.45)
    return [detector.info.labels[int(output.findings.scores[0].argmax())] for output in outputs]
