"""What the detector's reply to a batch says of each clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2 import wire
from pipeline_ver2.errors import BadReply, RequestError


@dataclass(frozen=True, slots=True)
class ClipFindings:
    """What Stage 1 found at one keyframe.

    Attributes:
        boxes: `(M, 4)` float32, each row (x1, y1, x2, y2) in 0..1 of the frame.
        scores: `(M, C)` float32, every class score of each box.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]

    def detections(
        self, labels: Sequence[str], *, threshold: float, size: tuple[int, int]
    ) -> tuple[wire.Detection, ...]:
        """The persons in pixels of a frame of `size` (width, height), each with its labels over the threshold.

        Raises:
            BadReply: The detector scores another number of classes than there are labels.
        """
        if self.scores.shape[1] != len(labels):
            raise BadReply(f"the detector scores {self.scores.shape[1]} classes, there are {len(labels)} labels")
        width, height = size
        pixels = self.boxes.astype(float) * (width, height, width, height)
        return tuple(
            wire.Detection(
                box=tuple(round(float(side), 4) for side in box),
                labels=tuple(
                    wire.LabelScore(name=labels[index], score=round(float(row[index]), 6))
                    for index in np.argsort(-row, kind="stable")
                    if row[index] >= threshold
                ),
            )
            for box, row in zip(pixels, self.scores, strict=True)
            if row.max(initial=0) >= threshold
        )


def read_findings(headers: Mapping[str, str], body: bytes, count: int) -> tuple[ClipFindings | BadReply, ...]:
    """One entry per clip of an infer reply, in its order: its findings, or why the clip failed.

    Raises:
        BadReply: The reply breaks the contract as a whole.
    """
    length = headers.get(wire.OIP_HEAD_LENGTH_HEADER)
    try:
        tensors, _ = wire.unpack_tensors(body, None if length is None else int(length), kind="outputs")
        status, found = tensors["status"].reshape(count), tensors["num_detections"].reshape(count)
        boxes, scores = tensors["boxes"].astype(np.float32), tensors["scores"].astype(np.float32)
        fits = boxes.ndim == scores.ndim == 3 and boxes.shape == (count, scores.shape[1], 4)
    except (RequestError, KeyError, ValueError) as error:
        raise BadReply(f"stage1: the reply does not fit: {error}") from error
    if not fits or len(scores) != count or found.min(initial=0) < 0 or found.max(initial=0) > boxes.shape[1]:
        raise BadReply(f"stage1: boxes {boxes.shape}, scores {scores.shape}, num_detections {found} do not fit")
    return tuple(
        BadReply(f"the detector reports status {status[i]}")
        if status[i] != 0
        else _finite(boxes[i, : found[i]], scores[i, : found[i]])
        for i in range(count)
    )


def _finite(boxes: NDArray[np.float32], scores: NDArray[np.float32]) -> ClipFindings | BadReply:
    if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
        return BadReply("the detector sent boxes or scores that are not finite")
    return ClipFindings(boxes, scores)
