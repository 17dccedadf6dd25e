"""What a detector is to the daemon: what it says of itself, raw output for clips, and findings out of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.errors import EngineFailed
from serving.workers.postprocess import Candidates, ClipOutput, find_candidates, suppress

GREY = 128

RawClip = NDArray[np.floating] | EngineFailed
"""The model's output for a clip, `(4 + C, N)`, see `postprocess`; or why there is none."""

RawClips = Sequence[RawClip] | NDArray[np.floating]
"""The outputs of some clips, `(B, 4 + C, N)` where all are there."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a detector is.

    Attributes:
        image_size: `(height, width)` of its input in pixels.
        note: A caution for readers.
        chunk: How many clips one run takes whatever their number, so that filling it up costs nothing; None if a run
            takes as long as its clips.
        details: What else was found in the file and decided at the start, for people: plain JSON.
    """

    platform: str
    provider: str
    source: str
    labels: tuple[str, ...]
    clip_length: int
    image_size: tuple[int, int]
    note: str | None = None
    chunk: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def grey_clip(self) -> NDArray[np.uint8]:
        """A clip with nothing in it, `(T, H, W, 3)`, to run for the sake of running."""
        return np.full((self.clip_length, *self.image_size, 3), GREY, np.uint8)


@dataclass(frozen=True, slots=True)
class RawBatch:
    """One entry per clip, in their order; and how many clips of no use were run along to fill sizes up."""

    clips: RawClips
    padded: int = 0


class Engine(Protocol):
    """Runs clips of several requests in one go. Not thread-safe: one call at a time."""

    @property
    def info(self) -> ModelInfo:
        """What it is."""

    def run(self, clips: Sequence[NDArray[np.uint8]]) -> RawBatch:
        """Raw output of clips, each `(T, H, W, 3)` uint8 RGB at the model's size. A clip that fails, fails alone."""

    def close(self) -> None:
        """Let a call that is running end soon."""


class Detector(Protocol):
    """Finds persons and actions in clips. Not thread-safe: one call at a time."""

    @property
    def info(self) -> ModelInfo:
        """What it is."""

    def detect(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        """One output per clip of `(B, T, H, W, 3)` uint8 RGB at the model's size; boxes belong to the last frame.

        Raises:
            EngineFailed: No clip could be worked on.
        """

    def close(self) -> None:
        """Let a call that is running end soon."""


def findings(clips: RawClips, info: ModelInfo, threshold: float, nms_iou: float) -> list[ClipOutput]:
    """The outputs of the clips of one request.

    Raises:
        EngineFailed: No clip could be worked on; this is the first one's reason.
    """
    return suppress(candidates_of(clips, info, threshold), nms_iou)


def candidates_of(clips: RawClips, info: ModelInfo, threshold: float) -> Candidates:
    """What may become boxes in the clips of one request.

    Raises:
        EngineFailed: No clip could be worked on; this is the first one's reason.
    """
    if isinstance(clips, np.ndarray):  # nothing failed, and nothing is to be copied
        return find_candidates(clips, info.image_size, threshold)
    errors = {number: raw for number, raw in enumerate(clips) if isinstance(raw, EngineFailed)}
    if errors and len(errors) == len(clips):
        raise errors[min(errors)]
    nothing = np.zeros_like(next(raw for raw in clips if not isinstance(raw, EngineFailed)))
    outputs = np.stack([nothing if isinstance(raw, EngineFailed) else raw for raw in clips])
    found = find_candidates(outputs, info.image_size, threshold)
    return replace(found, problems={**found.problems, **{number: str(error) for number, error in errors.items()}})
