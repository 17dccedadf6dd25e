"""What the checkout's configuration file says of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline_ver2.errors import ConfigError
from pipeline_ver2.labels import check_labels, read_labels

CLIP_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """How to build the network, and what its file must tell.

    Attributes:
        content: The whole configuration file, as the checkout's own code reads it.
        labels: Class names, in the order of the scores.
        clip_length: Frames of a clip.
        side: Height and width of its input in pixels.
    """

    content: Mapping[str, Any]
    labels: tuple[str, ...]
    clip_length: int
    side: int


def read_settings(file: Path, *, labels_file: Path | None = None, clip_length: int | None = None) -> Settings:
    """Read the configuration file of a checkout.

    Args:
        file: A YAML file with at least `num_classes` and `img_size`.
        labels_file: Class names that count instead of `idx2name`.
        clip_length: Frames that count instead of `clip_length`.

    Raises:
        ConfigError: The file cannot be read, or a key is missing or impossible; the message names it.
    """
    content = _content(file)
    classes = _whole(content, "num_classes", file)
    labels = _labels_of(content, file) if labels_file is None else read_labels(labels_file, "--labels")
    if len(labels) != classes:
        named = f"--config {file}: idx2name" if labels_file is None else f"--labels {labels_file}"
        raise ConfigError(f"{named} has {len(labels)} names, but num_classes is {classes}")
    length = clip_length or _whole({"clip_length": CLIP_LENGTH, **content}, "clip_length", file)
    return Settings(content, labels, length, _whole(content, "img_size", file))


def _content(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {file} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config {file} must hold keys and values, not {type(content).__name__}")
    return content


def _whole(content: Mapping[str, Any], key: str, file: Path) -> int:
    if key not in content:
        raise ConfigError(f"--config {file}: the key {key} is missing")
    value = content[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"--config {file}: {key} must be a whole number from 1 up, not {value!r}")
    return value


def _labels_of(content: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """The names of `idx2name`, whose numbers are those of the scores: they begin at 0 and leave none out."""
    said = f"--config {file}: idx2name"
    names = content.get("idx2name")
    if names is None:
        raise ConfigError(f"{said} is missing; give the class names with --labels FILE, one a line")
    if not isinstance(names, dict) or set(names) != set(range(len(names))):
        found = f"{sorted(map(str, names), key=len)[:3]}, …" if isinstance(names, dict) else type(names).__name__
        raise ConfigError(
            f"{said} must give each number from 0 up its name, found {found}; "
            "or give the names with --labels FILE, one a line"
        )
    return check_labels([names[number] for number in range(len(names))], said)
