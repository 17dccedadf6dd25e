"""Raw detector output to boxes: thresholds, suppression of doubles, and what to do with numbers that are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    nothing = ClipFindings(np.zeros((0, BOX_SIDES), np.float32), np.zeros((0, labels), np.float32))
    return ClipOutput(nothing, nonfinite, problem)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may become the boxes of some clips: clip by clip, best first.

    Attributes:
        boxes: `(K, 4)` x1, y1, x2, y2 in 0..1 of the frame, clipped to it.
        scores: `(K, C)` of every class.
        starts: `(B + 1,)`, where each clip's part begins, and the end.
        nonfinite: Dropped, by clip, because a number of theirs was NaN or infinite.
        problems: Why the output of a clip cannot be used, by its number; it has no candidates.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    starts: NDArray[np.intp]
    nonfinite: NDArray[np.intp]
    problems: Mapping[int, str]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.boxes)


def postprocess(
    output: NDArray[np.floating], image_size: tuple[int, int], threshold: float, nms_iou: float
) -> list[ClipOutput]:
    """Boxes of each clip of a batch; see `find_candidates` and `suppress`."""
    return suppress(find_candidates(output, image_size, threshold), nms_iou)


def find_candidates(output: NDArray[np.floating], image_size: tuple[int, int], threshold: float) -> Candidates:
    """All that reach the threshold, for all clips at once: most have few or none.

    Args:
        output: `(B, 4 + C, N)`, rows centre-x, centre-y, width, height in pixels of the model's input, then C scores
            in 0..1.
        image_size: `(height, width)` of the model's input in pixels.
        threshold: A box stays if its best score is at least this.
    """
    outputs = np.asarray(output, np.float32)
    numbers = np.isfinite(outputs)
    finite = None if numbers.all() else np.logical_and.reduce(numbers, axis=1)
    if finite is not None:
        outputs = np.where(finite[:, None], outputs, 0)
    scores = outputs[:, BOX_SIDES:]
    best = scores.max(axis=1, initial=0)
    over = best >= threshold
    nonfinite, problems = np.zeros(len(outputs), np.intp), {}
    if finite is not None:
        over &= finite
        nonfinite = np.count_nonzero(~finite, axis=1)
    if finite is not None or scores.min(initial=0) < -_SCORE_SLACK or best.max(initial=0) > 1 + _SCORE_SLACK:
        problems = dict(_problems(scores, best, np.ones_like(over) if finite is None else finite))
        over[list(problems)] = False
    clip, column = np.nonzero(over)
    found = outputs[clip, :, column]
    boxes = _corners(found[:, :BOX_SIDES], image_size)
    usable = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    order = np.lexsort((-np.minimum(best[clip, column], 1), clip))  # stable: equal scores stay in the model's order
    order = order[usable[order]]
    starts = np.searchsorted(clip[order], np.arange(len(outputs) + 1))
    return Candidates(boxes[order], found[order, BOX_SIDES:].clip(0, 1), starts, nonfinite, problems)


def suppress(candidates: Candidates, nms_iou: float) -> list[ClipOutput]:
    """The boxes of each clip. There is no limit on time, so that a busy machine finds the same boxes.

    Args:
        candidates: Of some clips.
        nms_iou: Of two boxes that overlap by more than this, whatever their labels, the lower one goes.
    """
    outputs: list[ClipOutput] = []
    for number, nonfinite in enumerate(candidates.nonfinite):
        if number in candidates.problems:
            labels = candidates.scores.shape[1]
            outputs.append(failed(candidates.problems[number], labels=labels, nonfinite=int(nonfinite)))
            continue
        start, end = (int(place) for place in candidates.starts[number : number + 2])
        looked_at = slice(start, min(end, start + MAX_CANDIDATES))
        boxes = candidates.boxes[looked_at]
        kept = _kept(boxes, nms_iou)
        found = ClipFindings(boxes[kept], candidates.scores[looked_at][kept])
        outputs.append(ClipOutput(found, int(nonfinite), cut=end - looked_at.stop))
    return outputs


def _problems(
    scores: NDArray[np.float32], best: NDArray[np.float32], finite: NDArray[np.bool_]
) -> Iterator[tuple[int, str]]:
    """Clips whose scores `(B, C, N)` are none, and why; where not finite, a candidate's are 0."""
    if finite.shape[1]:
        for number in np.flatnonzero(~finite.any(axis=1)):
            yield int(number), "the model's output holds no finite number"
    strange = (scores.min(axis=(1, 2), initial=0) < -_SCORE_SLACK) | (best.max(axis=1, initial=0) > 1 + _SCORE_SLACK)
    for number in np.flatnonzero(strange):
        said = scores[number][:, finite[number]]
        yield int(number), f"the model's scores reach from {said.min():.3g} to {said.max():.3g} instead of 0 to 1"


def _corners(centred: NDArray[np.float32], image_size: tuple[int, int]) -> NDArray[np.float32]:
    """`(N, 4)` centre-x, centre-y, width, height in input pixels to (x1, y1, x2, y2) in 0..1, clipped to the frame."""
    height, width = image_size
    middle, half = centred[:, :2], centred[:, 2:] / 2
    with np.errstate(over="ignore"):  # beyond the largest number is beyond the frame
        corners = np.concatenate([middle - half, middle + half], axis=1)
    corners /= np.asarray([width, height, width, height], np.float32)
    np.maximum(corners, 0, out=corners)
    np.minimum(corners, 1, out=corners)
    return corners


def _kept(boxes: NDArray[np.float32], nms_iou: float) -> NDArray[np.intp]:
    """Indices of the boxes that stay, of boxes `(N, 4)` sorted best first; at most `MAX_BOXES`."""
    if len(boxes) <= 1:
        return np.arange(len(boxes))
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
