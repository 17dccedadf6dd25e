"""What the detector is trained on: which anchors answer for which person, and how wrong they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_TOP = 10
_IOU_POWER = 6
_BOX_WEIGHT = 2.5
_ACTION_WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """The people of one key frame: boxes `(P, 4)` float32 x1, y1, x2, y2 in input pixels; actions `(P,)` int64."""

    boxes: Tensor
    actions: Tensor


@dataclass(frozen=True, slots=True)
class Assignment:
    """Anchors that answer for somebody in one picture: `anchors` `(K,)`, their `persons` `(K,)`, `weights` `(K,)`."""

    anchors: Tensor
    persons: Tensor
    weights: Tensor


def loss(boxes: Tensor, logits: Tensor, anchors: Tensor, targets: Sequence[Target]) -> Tensor:
    """Loss of a batch.

    Args:
        boxes: `(B, N, 4)` float32, x1, y1, x2, y2 in input pixels.
        logits: `(B, N, C)` float32.
        anchors: `(N, 2)` float32, x and y in input pixels.
        targets: One for each of the batch.

    Returns:
        Scalar: binary cross-entropy against aligned targets, GIoU, and cross-entropy over the actions of positives.
    """
    wanted = torch.zeros_like(logits)
    box_loss = boxes.new_zeros(())
    action_loss = boxes.new_zeros(())
    for index, target in enumerate(targets):
        found = assign(boxes[index].detach(), logits[index].detach(), anchors, target)
        if not len(found.anchors):
            continue
        actions = target.actions[found.persons]
        wanted[index, found.anchors, actions] = found.weights
        near = giou(boxes[index, found.anchors], target.boxes[found.persons])
        box_loss = box_loss + ((1 - near) * found.weights).sum()
        crossed = functional.cross_entropy(logits[index, found.anchors], actions, reduction="none")
        action_loss = action_loss + (crossed * found.weights).sum()
    total = wanted.sum().clamp(min=1)
    class_loss = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
    return (class_loss + _BOX_WEIGHT * box_loss + _ACTION_WEIGHT * action_loss) / total


def assign(boxes: Tensor, logits: Tensor, anchors: Tensor, target: Target) -> Assignment:
    """Task-aligned assignment: a person goes to the anchors inside its box that score and fit it best.

    An anchor that fits several people takes the one it overlaps most. Weights are the alignment, scaled so that a
    person's best anchor has that person's best overlap.
    """
    overlap = pairwise_iou(target.boxes, boxes)
    inside = _inside(anchors, target.boxes)
    align = torch.sigmoid(logits)[:, target.actions].T.sqrt() * overlap**_IOU_POWER * inside
    if not align.numel():
        empty = torch.zeros(0, dtype=torch.int64)
        return Assignment(empty, empty, torch.zeros(0))
    best = align.topk(min(_TOP, align.shape[1]), dim=1)
    chosen = torch.zeros_like(align).scatter_(1, best.indices, 1.0) * (align > 0)
    person = (overlap * chosen + chosen).argmax(dim=0)
    positive = chosen.any(dim=0).nonzero().squeeze(1)
    person = person[positive]
    kept = torch.zeros_like(align)
    kept[person, positive] = align[person, positive]
    scale = (overlap * (kept > 0)).amax(dim=1) / kept.amax(dim=1).clamp(min=1e-9)
    return Assignment(positive, person, kept[person, positive] * scale[person])


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union `(P, N)` of boxes `(P, 4)` and `(N, 4)`."""
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=2)
    return shared / (_area(first)[:, None] + _area(second)[None] - shared).clamp(min=1e-6)


def giou(first: Tensor, second: Tensor) -> Tensor:
    """Generalised intersection over union `(K,)` of matching boxes `(K, 4)`."""
    shared = (
        (torch.minimum(first[:, 2:], second[:, 2:]) - torch.maximum(first[:, :2], second[:, :2])).clamp(min=0).prod(1)
    )
    union = (_area(first) + _area(second) - shared).clamp(min=1e-6)
    around = (torch.maximum(first[:, 2:], second[:, 2:]) - torch.minimum(first[:, :2], second[:, :2])).prod(1)
    return shared / union - (around - union) / around.clamp(min=1e-6)


def _inside(points: Tensor, boxes: Tensor) -> Tensor:
    """`(P, N)` bool: point n lies in box p."""
    return ((points[None] > boxes[:, None, :2]) & (points[None] < boxes[:, None, 2:])).all(dim=2)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=1)
