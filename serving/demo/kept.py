"""Parts of an evaluation that are done, in a file, so that an interrupted one goes on with the next part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline_ver2.errors import ResultsError
from pipeline_ver2.results import fingerprint, sha256_of
from serving.bench.bars import Bar

Part = tuple[dict[str, Any], list[Bar]]


def identity(files: Iterable[Path], settings: Mapping[str, Any]) -> str:
    """What figures belong to: the bytes of the models' files, and what was asked for.

    Raises:
        ResultsError: A file cannot be read.
    """
    try:
        return fingerprint({**settings, "files": [sha256_of(file) for file in sorted(files)]})
    except OSError as error:
        raise ResultsError(f"{error.filename}: {error.strerror}") from error


class Kept:
    """The finished parts of one evaluation.

    Args:
        path: The file; None keeps nothing.
        belongs_to: Parts of an evaluation of anything else are not taken up, and their file is written anew.

    Raises:
        ResultsError: The file is there and was not written here.
    """

    def __init__(self, path: Path | None, belongs_to: str) -> None:
        self._path, self._belongs_to = path, belongs_to
        self._parts: dict[str, Any] = {} if path is None or not path.exists() else self._read(path)

    def get(self, part: str) -> Part | None:
        """Figures and bars of a part, if it is done."""
        found = self._parts.get(part)
        return None if found is None else (found["figures"], [Bar(**bar) for bar in found["bars"]])

    def put(self, part: str, figures: dict[str, Any], bars: Sequence[Bar]) -> None:
        """Keep a part.

        Raises:
            ResultsError: The file cannot be written.
        """
        self._parts[part] = {"figures": figures, "bars": [asdict(bar) for bar in bars]}
        if self._path is None:
            return
        draft = self._path.with_suffix(".part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps({"belongs_to": self._belongs_to, "parts": self._parts}), encoding="utf-8")
            draft.replace(self._path)
        except OSError as error:
            raise ResultsError(f"{self._path}: {error.strerror}") from error

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            same, parts = content["belongs_to"] == self._belongs_to, dict(content["parts"])
        except OSError as error:
            raise ResultsError(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{path} holds no parts of an evaluation; name another file") from error
        return parts if same else {}
