"""The whole configuration in a private file, for started daemons: written, removed, and swept up after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from pathlib import Path

from pipeline_ver2.config import Config

_NAME = re.compile(r"config-(?P<pid>[0-9]+)-[0-9a-f]{8}\.json")


def private_config_file(folder: Path) -> Path:
    """A new name for a file of this process; `sweep` knows it by that name."""
    return folder / f"config-{os.getpid()}-{secrets.token_hex(4)}.json"


def write_effective_config(config: Config, file: Path) -> None:
    """Write the configuration, paths absolute, to a new file that only this user can read."""
    absolute = Config.model_validate(config.model_dump(), context={"base": Path.cwd()})
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(absolute.model_dump(mode="json"), stream, indent=2)


def remove(file: Path) -> None:
    """Delete a file that may be gone already."""
    with contextlib.suppress(OSError):
        file.unlink()


def sweep(folder: Path) -> None:
    """Delete the files of processes that were killed before they could do it; daemons have read theirs long since."""
    for path in folder.glob("config-*.json"):
        named = _NAME.fullmatch(path.name)
        if named is not None and not _is_running(int(named["pid"])):
            remove(path)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
