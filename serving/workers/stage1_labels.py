"""Class names of a detector: from the user's file, or from the metadata of the model file.

Lists of data sets that count their classes from 1, as AVA's does, mean the same order: class 0 here is their number 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline_ver2 import labels
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
    return labels.labels_of_json(metadata[METADATA_KEY], _IN_METADATA)


def labels_of_file(path: Path) -> tuple[str, ...]:
    """The names of the file of `stage1.labels_path`, see `pipeline_ver2.labels.read_labels`.

    Raises:
        ConfigError: It cannot be read, or cannot be used.
    """
    return labels.read_labels(path, "stage1.labels_path")
