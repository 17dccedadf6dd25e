"""What every section of the configuration is, and how the files that people write are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ver2.errors import ConfigError

_MAX_BYTES = 10_000_000


class Section(BaseModel):
    """A section: immutable, it knows its keys, and its numbers are finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


def read_json_file(path: Path, kind: str) -> Any:  # noqa: ANN401 - any JSON
    """The content of a file in JSON; `kind` is what messages call it.

    Raises:
        ConfigError: It cannot be read, has over 10 MB, or is no JSON.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigError(f"{kind} {path} has over {_MAX_BYTES // 1_000_000} MB")
        return json.loads(content.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{kind} {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{kind} {path} is not valid JSON: {error}") from error
