"""What a server of the Open Inference Protocol says of its detector, with the configuration where it says nothing.

The daemon of this project tells labels, clip length and image size in the `parameters` of its model's metadata. Triton
has none there, and its shapes hold -1 for a side that is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline_ver2.config import Stage1Config
from pipeline_ver2.errors import BadReply, ConfigError
from pipeline_ver2.labels import read_labels

Metadata = Mapping[str, Any]


def parameters_of(content: Metadata) -> Metadata:
    """The model's parameters; none if the server has none."""
    parameters = content.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def input_of(content: Metadata, config: Stage1Config) -> tuple[int, tuple[int, int]]:
    """`(clip_length, (height, width))` of the clips that the server wants.

    Raises:
        BadReply: The metadata has no input `clips`, or contradicts itself.
        ConfigError: Size of the images: it tells none and `stage1.image_size` does not either, or they differ.
    """
    shape = _shape(content, "inputs", "clips")
    if len(shape) != 5:
        raise BadReply(f"stage1: the input `clips` of its metadata must be [B,T,H,W,3], not {shape}")
    parameters = parameters_of(content)
    length = _agreed([shape[1]], [parameters.get("clip_length")], "clip_length")
    size = _agreed(shape[2:4], parameters.get("image_size"), "image_size")
    return (config.clip_length if length is None else length[0]), _chosen_size(size, config)


def labels_of(content: Metadata, config: Stage1Config) -> tuple[str, ...]:
    """The class names. Reads a file where the server names none, and compares where both do.

    Raises:
        BadReply: The server names another number of labels than it scores.
        ConfigError: The server names none and `stage1.labels_path` is not set, or they differ.
    """
    told, file = parameters_of(content).get("labels"), config.labels_path
    labels = tuple(str(label) for label in told) if isinstance(told, list) else None
    classes = _classes(content)
    if labels is not None and classes not in {None, len(labels)}:
        raise BadReply(f"stage1: the server names {len(labels)} labels and scores {classes} classes")
    # A server elsewhere may have been given its labels by a file that is not here.
    if file is None or (labels is not None and not file.exists()):
        if labels is None:
            raise ConfigError(f"stage1.labels_path: must be set, since the server at {config.base_url} names no labels")
        return labels
    named = read_labels(file, "stage1.labels_path")
    if classes not in {None, len(named)}:
        raise ConfigError(
            f"stage1.labels_path: {file} has {len(named)} labels, but the server at {config.base_url} scores "
            f"{classes} classes"
        )
    if labels not in {None, named}:
        raise ConfigError(f"stage1.labels_path: {file} has other labels than the server at {config.base_url}")
    return named


def _chosen_size(told: Sequence[int] | None, config: Stage1Config) -> tuple[int, int]:
    wanted, where = config.image_size, f"the server at {config.base_url}"
    if told is None:
        if wanted is None:
            raise ConfigError(f"stage1.image_size: must be set, since {where} tells no size")
        return wanted
    height, width = told
    if wanted not in {None, (height, width)}:
        raise ConfigError(f"stage1.image_size: is {wanted}, but {where} takes {(height, width)}")
    return height, width


def _shape(content: Metadata, kind: str, name: str) -> list[int]:
    try:
        shape = next(tensor["shape"] for tensor in content[kind] if tensor["name"] == name)
        return [int(side) for side in shape]
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise BadReply(f"stage1: its metadata has no shape of `{name}` among its {kind}") from error


def _classes(content: Metadata) -> int | None:
    """How many classes are scored, where the server tells that."""
    try:
        *_, classes = _shape(content, "outputs", "scores")
    except (BadReply, ValueError):
        return None
    return classes if classes > 0 else None


def _agreed(shape: Sequence[int], told: object, name: str) -> Sequence[int] | None:
    """The sides, from the shape where it fixes them, else from the parameter; None if neither tells."""
    fits = [sides for sides in (shape, told) if isinstance(sides, list) and len(sides) == len(shape)]
    known = [sides for sides in fits if all(type(side) is int and side > 0 for side in sides)]
    if len(known) == 2 and known[0] != known[1]:
        raise BadReply(f"stage1: its metadata says {known[0]} in the shape of `clips` and {known[1]} in `{name}`")
    return known[0] if known else None
