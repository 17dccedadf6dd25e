"""Raw detector output to boxes: thresholds, suppression of doubles, and what to do with numbers that are none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.findings import ClipFindings

MAX_CANDIDATES = 1000
MAX_BOXES = 100
BOX_SIDES = 4
_SCORE_SLACK = 1e-3


@dataclass(frozen=True, slots=True)
class ClipOutput:
    """What the detector says of one clip.

    Attributes:
        findings: Boxes best first, in 0..1 of the frame, with all class scores.
        nonfinite: Candidates dropped because a number of theirs was NaN or infinite.
        problem: Why the output cannot be used; None if it can. Then there are no findings.
        cut: Candidates over the threshold that were too many to be looked at, the lowest ones.
    """

    findings: ClipFindings
    nonfinite: int = 0
    problem: str | None = None
    cut: int = 0


def failed(problem: str, *, labels: int, nonfinite: int = 0) -> ClipOutput:
    """The output of a clip that could not be used, for a detector of so many labels."""
    return ClipOutput(_no_findings(labels), nonfinite, problem)


def postprocess(
    output: NDArray[np.floating], image_size: tuple[int, int], threshold: float, nms_iou: float
) -> list[ClipOutput]:
    """Boxes of each clip of a batch. There is no limit on time, so that a busy machine finds the same boxes.

    Args:
        output: `(B, 4 + C, N)`, rows centre-x, centre-y, width, height in pixels of the model's input, then C scores
            in 0..1.
        image_size: `(height, width)` of the model's input in pixels.
        threshold: A box stays if its best score is at least this.
        nms_iou: Of two boxes that overlap by more than this, whatever their labels, the lower one goes.
    """
    outputs = np.asarray(output, np.float32)
    if np.isfinite(outputs).all():
        return _all_finite(outputs, image_size, threshold, nms_iou)
    return [_finite_part(item, image_size, threshold, nms_iou) for item in outputs]


def _finite_part(
    item: NDArray[np.float32], image_size: tuple[int, int], threshold: float, nms_iou: float
) -> ClipOutput:
    """One clip without its candidates that hold a NaN or infinity."""
    finite = np.isfinite(item).all(axis=0)
    nonfinite = int(item.shape[1] - finite.sum())
    if nonfinite and not finite.any():
        said = "the model's output holds no finite number"
        return failed(said, labels=len(item) - BOX_SIDES, nonfinite=nonfinite)
    (output,) = _all_finite(item[None, :, finite], image_size, threshold, nms_iou)
    return replace(output, nonfinite=nonfinite)


def _all_finite(
    outputs: NDArray[np.float32], image_size: tuple[int, int], threshold: float, nms_iou: float
) -> list[ClipOutput]:
    """What all clips share is worked out for all at once; most have few candidates or none."""
    scores = outputs[:, BOX_SIDES:]
    best = scores.max(axis=1, initial=0)
    strange = (scores.min(axis=(1, 2), initial=0) < -_SCORE_SLACK) | (best.max(axis=1, initial=0) > 1 + _SCORE_SLACK)
    np.minimum(best, 1, out=best)
    over = best >= threshold
    nothing = _no_findings(scores.shape[1])
    found: list[ClipOutput] = []
    for number, hit in enumerate(over.any(axis=1)):
        if strange[number]:
            low, high = scores[number].min(), scores[number].max()
            said = f"the model's scores reach from {low:.3g} to {high:.3g} instead of 0 to 1"
            found.append(failed(said, labels=scores.shape[1]))
        elif hit:
            chosen = np.flatnonzero(over[number])
            found.append(_one_clip(outputs[number][:, chosen], best[number, chosen], image_size, nms_iou))
        else:
            found.append(ClipOutput(nothing))
    return found


def _one_clip(
    candidates: NDArray[np.float32], best: NDArray[np.float32], image_size: tuple[int, int], nms_iou: float
) -> ClipOutput:
    """The boxes among the candidates `(4 + C, K)` over the threshold, and the best score of each `(K,)`."""
    boxes = _corners(candidates[:BOX_SIDES].T, image_size)
    usable = np.flatnonzero((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))
    order = usable[np.argsort(-best[usable], kind="stable")]
    looked_at = order[:MAX_CANDIDATES]
    kept = looked_at[_suppress(boxes[looked_at], nms_iou)]
    found = ClipFindings(boxes[kept], candidates[BOX_SIDES:, kept].T.clip(0, 1))
    return ClipOutput(found, cut=len(order) - len(looked_at))


def _no_findings(labels: int) -> ClipFindings:
    return ClipFindings(np.zeros((0, BOX_SIDES), np.float32), np.zeros((0, labels), np.float32))


def _corners(centred: NDArray[np.float32], image_size: tuple[int, int]) -> NDArray[np.float32]:
    """`(N, 4)` centre-x, centre-y, width, height in input pixels to (x1, y1, x2, y2) in 0..1, clipped to the frame."""
    height, width = image_size
    middle, half = centred[:, :2], centred[:, 2:] / 2
    corners = np.concatenate([middle - half, middle + half], axis=1)
    return np.clip(corners / np.asarray([width, height, width, height], np.float32), 0, 1)


def _suppress(boxes: NDArray[np.float32], nms_iou: float) -> NDArray[np.intp]:
    """Indices of the boxes that stay, of boxes `(N, 4)` sorted best first; at most `MAX_BOXES`."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left = np.arange(len(boxes))
    kept: list[int] = []
    while len(left) and len(kept) < MAX_BOXES:
        first, left = left[0], left[1:]
        kept.append(first)
        corner = np.minimum(boxes[first, 2:], boxes[left, 2:]) - np.maximum(boxes[first, :2], boxes[left, :2])
        shared = np.prod(np.clip(corner, 0, None), axis=1)
        left = left[shared <= nms_iou * (areas[first] + areas[left] - shared)]
    return np.asarray(kept, np.intp)
