"""The class names of a detector, from a file of the user's or from what a model or a server says of itself.

The place of a name is the class: the first name is that of the first score.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipeline_ver2.errors import ConfigError


def read_labels(path: Path, key: str) -> tuple[str, ...]:
    """Class names from a file: one a line, a JSON list, or a JSON object of index and name, from 0 or from 1.

    Args:
        path: The file.
        key: What names the file to the user, for messages: a key of config.json or an option.

    Raises:
        ConfigError: It cannot be read, or holds no names or one twice.
    """
    said = f"{key}: {path}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{said} cannot be read: {error}") from error
    if not text.lstrip().startswith(("[", "{")):
        return check_labels([line.strip() for line in text.splitlines() if line.strip()], said)
    return labels_of_json(text, said)


def labels_of_json(text: str, said: str) -> tuple[str, ...]:
    """Class names from a JSON list, or a JSON object of index and name, from 0 or from 1.

    Args:
        text: The JSON.
        said: Where it is from, the beginning of a message.

    Raises:
        ConfigError: It is no JSON, or holds no names or one twice.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{said} is not valid JSON: {error}") from error
    return check_labels(_in_order(content, said) if isinstance(content, dict) else content, said)


def check_labels(names: object, said: str) -> tuple[str, ...]:
    """The names as a tuple.

    Args:
        names: What should be a list of different, non-empty names.
        said: Where they are from, the beginning of a message.

    Raises:
        ConfigError: They are something else.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{said} must be a list of names, or an object of indices and names")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{said} must hold at least one name and none twice")
    return tuple(names)


def _in_order(names: Mapping[str, object], said: str) -> list[object]:
    """The names by index; a gap would leave it open which score is whose."""
    base = 0 if "0" in names else 1
    wanted = [str(index) for index in range(base, base + len(names))]
    missing = next((index for index in wanted if index not in names), None)
    if missing is not None:
        raise ConfigError(f"{said} must name every index from 0 or from 1 on, index {missing} is missing")
    return [names[index] for index in wanted]
