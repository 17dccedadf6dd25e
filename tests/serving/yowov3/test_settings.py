"""What is read from the configuration file of a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline_ver2.errors import ConfigError
from serving.yowov3.settings import read_settings

GOOD: dict[str, Any] = {"num_classes": 2, "img_size": 224, "clip_length": 8, "idx2name": {0: "sit", 1: "stand up"}}


def written(tmp_path: Path, **changes: object) -> Path:
    """A configuration file that works, changed; None takes a key out."""
    content = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_a_whole_file(tmp_path: Path) -> None:
    """Names are in the order of their numbers, however the file lists them, and everything else is passed on."""
    file = written(tmp_path, idx2name={1: "stand up", 0: "sit"}, mode="decoupled")
    settings = read_settings(file)
    assert (settings.labels, settings.clip_length, settings.side) == (("sit", "stand up"), 8, 224)
    assert settings.content["mode"] == "decoupled"


def test_defaults_and_options(tmp_path: Path) -> None:
    """A clip has 16 frames where nothing is said; options count more than the file."""
    assert read_settings(written(tmp_path, clip_length=None)).clip_length == 16
    (tmp_path / "labels.txt").write_text("fall\nwave\n")
    told = read_settings(written(tmp_path), labels_file=tmp_path / "labels.txt", clip_length=32)
    assert (told.labels, told.clip_length) == (("fall", "wave"), 32)


@pytest.mark.fault("A2")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_classes": None}, "the key num_classes is missing"),
        ({"img_size": None}, "the key img_size is missing"),
        ({"img_size": [224, 224]}, "img_size must be a whole number"),
        ({"clip_length": 0}, "clip_length must be a whole number"),
        ({"num_classes": True}, "num_classes must be a whole number"),
        ({"num_classes": 3}, "idx2name has 2 names, but num_classes is 3"),
        ({"idx2name": None}, "--labels FILE"),
        ({"idx2name": {1: "sit", 2: "stand up"}}, "each number from 0 up"),
        ({"idx2name": {0: "sit", 2: "stand up"}}, "each number from 0 up"),
        ({"idx2name": ["sit", "stand up"]}, "each number from 0 up"),
        ({"idx2name": {0: "sit", 1: "sit"}}, "none twice"),
        ({"idx2name": {0: "sit", 1: 7}}, "a list of names"),
    ],
)
def test_a_key_that_does_not_do_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Missing and impossible keys; labels that begin at 1 would be off by one."""
    with pytest.raises(ConfigError, match=said):
        read_settings(written(tmp_path, **changes))


def test_labels_of_another_number_are_refused(tmp_path: Path) -> None:
    """The message names the file the labels are from."""
    (tmp_path / "labels.txt").write_text("fall\n")
    with pytest.raises(ConfigError, match=r"--labels .*labels\.txt has 1 names, but num_classes is 2"):
        read_settings(written(tmp_path), labels_file=tmp_path / "labels.txt")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"a: [", "not valid YAML"),
        (b"- a", "keys and values"),
        (b"", "keys and values"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    """In one line that names it."""
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_settings(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
