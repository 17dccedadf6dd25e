"""Class names of a detector: from a text or JSON file, or from the metadata of the model file.

The place of a name is the class: the first name is that of the model's first score. Lists of data sets that count
their classes from 1, as AVA's does, mean the same order: class 0 here is their number 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipeline_ver2.errors import ConfigError

METADATA_KEY = "labels"
_IN_METADATA = f"stage1.model_path: the `{METADATA_KEY}` of its metadata"


def read_labels(path: Path | None, metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the file if there is one, else those of the model file's metadata.

    Raises:
        ConfigError: Neither names them, or what is there cannot be used.
    """
    if path is not None:
        return labels_of_file(path)
    if METADATA_KEY not in metadata:
        raise ConfigError("stage1.labels_path: must be set, since the model file names no labels")
    return _named(_json(metadata[METADATA_KEY], _IN_METADATA), _IN_METADATA)


def labels_of_file(path: Path) -> tuple[str, ...]:
    """The names of a file: one a line, or a JSON list, or a JSON object of index and name, from 0 or from 1.

    Raises:
        ConfigError: It cannot be read, or cannot be used.
    """
    said = f"stage1.labels_path: {path}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{said} cannot be read: {error}") from error
    if text.lstrip().startswith(("[", "{")):
        return _named(_json(text, said), said)
    return _named([line.strip() for line in text.splitlines() if line.strip()], said)


def _json(text: str, said: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{said} is not valid JSON: {error}") from error
    return value


def _named(names: object, said: str) -> tuple[str, ...]:
    if isinstance(names, dict):
        names = _in_order(names, said)
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{said} must be a list of names, or an object of indices and names")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{said} must hold at least one name and none twice")
    return tuple(names)


def _in_order(names: Mapping[str, object], said: str) -> list[object]:
    """The names by index. A gap would leave it open which score is whose, so there must be none."""
    base = 0 if "0" in names else 1
    wanted = [str(index) for index in range(base, base + len(names))]
    missing = next((index for index in wanted if index not in names), None)
    if missing is not None:
        raise ConfigError(f"{said} must name every index from 0 or from 1 on, index {missing} is missing")
    return [names[index] for index in wanted]
