"""The class names of a detector, from a file of the user's or from what a model or a server says of itself."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline_ver2.errors import ConfigError


def read_labels(path: Path, key: str) -> tuple[str, ...]:
    """Class names from a file: one a line, or a JSON list.

    Args:
        path: The file.
        key: What names the file to the user, for messages: a key of config.json or an option.

    Raises:
        ConfigError: It cannot be read, or holds no names or one twice.
    """
    said = f"{key}: {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{said} cannot be read: {error}") from error
    if not text.lstrip().startswith("["):
        return check_labels([line.strip() for line in text.splitlines() if line.strip()], said)
    try:
        return check_labels(json.loads(text), said)
    except ValueError as error:
        raise ConfigError(f"{said} is not valid JSON: {error}") from error


def check_labels(names: object, said: str) -> tuple[str, ...]:
    """The names as a tuple.

    Args:
        names: What should be a list of different, non-empty names.
        said: Where they are from, the beginning of a message.

    Raises:
        ConfigError: They are something else.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{said} must be a list of names")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{said} must hold at least one name and none twice")
    return tuple(names)
