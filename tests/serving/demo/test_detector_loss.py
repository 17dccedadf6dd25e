"""Which anchors answer for whom, and the loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from serving.demo.detector_loss import Target, assign, giou, loss, pairwise_iou

ANCHORS = torch.tensor([(x + 4.0, y + 4.0) for y in range(0, 64, 8) for x in range(0, 64, 8)])
PERSON = torch.tensor([[8.0, 8.0, 40.0, 56.0]])


def boxes_around() -> Tensor:
    """Every anchor guesses the person, those further from its middle a little worse."""
    shift = (ANCHORS - torch.tensor([24.0, 32.0])).norm(dim=1, keepdim=True) * 0.05
    boxes: Tensor = PERSON.expand(len(ANCHORS), 4) + shift
    return boxes


def test_iou_and_giou_of_known_boxes() -> None:
    """Same boxes have 1, halves a third, boxes apart 0 and a negative GIoU."""
    square, right_half_off = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[5.0, 0, 15, 10]])
    apart = torch.tensor([[20.0, 0, 30, 10]])
    assert pairwise_iou(square, torch.cat((square, right_half_off, apart))).tolist()[0] == pytest.approx([1, 1 / 3, 0])
    assert giou(square, square).item() == pytest.approx(1)
    assert giou(square, right_half_off).item() == pytest.approx(1 / 3)
    assert giou(square, apart).item() == pytest.approx(-1 / 3)


def test_nobody_is_assigned_to_nothing() -> None:
    """A picture without people has no positive anchors."""
    nobody = Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    found = assign(boxes_around(), torch.zeros(len(ANCHORS), 6), ANCHORS, nobody)
    assert len(found.anchors) == 0


def test_best_anchors_inside_the_box_answer() -> None:
    """Ten anchors inside the box are positive; the best one weighs as much as it overlaps."""
    boxes = boxes_around()
    found = assign(boxes, torch.zeros(len(ANCHORS), 6), ANCHORS, Target(PERSON, torch.tensor([2])))
    assert len(found.anchors) == 10
    inside = ANCHORS[found.anchors]
    assert ((inside > PERSON[0, :2]) & (inside < PERSON[0, 2:])).all()
    best = pairwise_iou(PERSON, boxes[found.anchors]).max()
    assert found.weights.max().item() == pytest.approx(best.item())


def test_each_anchor_answers_for_one_person() -> None:
    """Where two people overlap, an anchor takes the one that it fits best, and both are answered for."""
    people = torch.tensor([[8.0, 8, 40, 56], [16.0, 8, 48, 56]])
    boxes = torch.where(ANCHORS[:, :1] < 28, people[:1], people[1:])
    found = assign(boxes, torch.zeros(len(ANCHORS), 6), ANCHORS, Target(people, torch.tensor([0, 1])))
    assert len(set(found.anchors.tolist())) == len(found.anchors)
    assert set(found.persons.tolist()) == {0, 1}
    for anchor, person in zip(found.anchors.tolist(), found.persons.tolist(), strict=True):
        assert person == pairwise_iou(people, boxes[anchor][None])[:, 0].argmax()


def test_right_answers_cost_less() -> None:
    """Loss falls when the right class scores and the boxes fit, and is finite without people."""
    target = [Target(PERSON, torch.tensor([3]))]
    sure = torch.full((1, len(ANCHORS), 6), -8.0)
    inside = assign(boxes_around(), sure[0], ANCHORS, target[0]).anchors
    right, wrong = sure.clone(), sure.clone()
    right[0, inside, 3] = 3
    wrong[0, inside, 1] = 3
    boxes = boxes_around()[None]
    assert loss(boxes, right, ANCHORS, target) < loss(boxes, wrong, ANCHORS, target)
    assert loss(boxes, right, ANCHORS, target) < loss(boxes + 6, right, ANCHORS, target)
    nobody = [Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))]
    assert loss(boxes, sure, ANCHORS, nobody).isfinite()
