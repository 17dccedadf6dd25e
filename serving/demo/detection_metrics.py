"""How well boxes fit the truth: frame-mAP over classes, and counts at one threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IOU = 0.5


@dataclass(frozen=True, slots=True)
class FrameResult:
    """One frame: what was found and what is true.

    `boxes` `(M, 4)` and `true_boxes` `(P, 4)` float, x1, y1, x2, y2 in 0..1 of the frame; `scores` `(M, C)` in 0..1,
    best box first; `true_labels` `(P,)` int, indices of classes.
    """

    boxes: NDArray[np.floating]
    scores: NDArray[np.floating]
    true_boxes: NDArray[np.floating]
    true_labels: NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Counts:
    """What is right and wrong at one threshold. `actions_right` is a share of the boxes on people."""

    precision: float
    recall: float
    false_boxes_per_frame: float
    actions_right: float


def mean_average_precision(frames: Sequence[FrameResult], classes: int) -> tuple[float, list[float | None]]:
    """Frame-mAP at an overlap of 0.5.

    Returns:
        `(mean, per class)`; a class that is never true has None and stays out of the mean, which is 0 if all do.
    """
    values = [average_precision(frames, label) for label in range(classes)]
    known = [value for value in values if value is not None]
    return (float(np.mean(known)) if known else 0.0), values


def average_precision(frames: Sequence[FrameResult], label: int) -> float | None:
    """Area under the precision-recall curve of one class, every point of it used; None if the class is never true."""
    found: list[tuple[float, bool]] = []
    total = 0
    for frame in frames:
        wanted = frame.true_boxes[frame.true_labels == label]
        total += len(wanted)
        scores = frame.scores[:, label]
        order = np.argsort(-scores, kind="stable")
        hits = match(frame.boxes[order], wanted)
        found += zip(scores[order].tolist(), (hits >= 0).tolist(), strict=True)
    if total == 0:
        return None
    found.sort(key=lambda entry: -entry[0])
    right = np.cumsum([hit for _, hit in found], dtype=np.float64)
    recall = np.concatenate(([0.0], right / total))
    precision = right / np.arange(1, len(right) + 1)
    ceiling = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall) * ceiling))


def count_at(frames: Sequence[FrameResult], threshold: float) -> Counts:
    """Counts over all frames of the boxes whose best score reaches a threshold."""
    boxes = people = on_people = right = 0
    for frame in frames:
        kept = frame.scores.max(axis=1, initial=0) >= threshold
        hits = match(frame.boxes[kept], frame.true_boxes)
        labels = frame.scores[kept].argmax(axis=1)
        boxes, people = boxes + int(kept.sum()), people + len(frame.true_boxes)
        on_people += int((hits >= 0).sum())
        right += int((labels[hits >= 0] == frame.true_labels[hits[hits >= 0]]).sum())
    return Counts(
        precision=on_people / max(1, boxes),
        recall=on_people / max(1, people),
        false_boxes_per_frame=(boxes - on_people) / max(1, len(frames)),
        actions_right=right / max(1, on_people),
    )


def match(boxes: NDArray[np.floating], wanted: NDArray[np.floating]) -> NDArray[np.int64]:
    """For each box, best first, the index of the true box it hits, each taken once; -1 where it hits none."""
    hits = np.full(len(boxes), -1, np.int64)
    if not len(wanted):
        return hits
    overlaps = iou(boxes, wanted)
    for index, overlap in enumerate(overlaps):
        best = int(overlap.argmax())
        if overlap[best] >= IOU:
            hits[index] = best
            overlaps[:, best] = 0
    return hits


def iou(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """Intersection over union `(M, P)` of boxes `(M, 4)` and `(P, 4)`."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1) for boxes in (first, second)]
    return np.asarray(shared / np.maximum(areas[0][:, None] + areas[1][None] - shared, 1e-12), np.float64)
