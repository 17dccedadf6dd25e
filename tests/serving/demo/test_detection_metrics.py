"""Figures of merit of boxes."""

from __future__ import annotations

import numpy as np
import pytest

from serving.demo.detection_metrics import FrameResult, average_precision, count_at, iou, match, mean_average_precision

LEFT, RIGHT = (0.0, 0.0, 0.4, 1.0), (0.6, 0.0, 1.0, 1.0)
Box = tuple[float, float, float, float]


def frame(found: list[tuple[Box, tuple[float, float]]], true: list[tuple[Box, int]]) -> FrameResult:
    """A frame of a world with two classes."""
    return FrameResult(
        np.array([box for box, _ in found]).reshape(-1, 4),
        np.array([scores for _, scores in found]).reshape(-1, 2),
        np.array([box for box, _ in true]).reshape(-1, 4),
        np.array([label for _, label in true], np.int64),
    )


def test_perfect_is_one() -> None:
    """All found and nothing else: 1 for each class."""
    frames = [frame([(LEFT, (0.9, 0.0)), (RIGHT, (0.0, 0.8))], [(LEFT, 0), (RIGHT, 1)]), frame([], [])]
    assert mean_average_precision(frames, 2) == (1.0, [1.0, 1.0])
    counts = count_at(frames, 0.25)
    assert (counts.precision, counts.recall, counts.false_boxes_per_frame, counts.actions_right) == (1, 1, 0, 1)


def test_nothing_found_is_zero() -> None:
    """Missing everybody gives 0, of the classes that are true."""
    assert mean_average_precision([frame([], [(LEFT, 0)])], 2) == (0.0, [0.0, None])


def test_no_frames() -> None:
    """Of nothing there are no figures, and nothing breaks."""
    assert mean_average_precision([], 2) == (0.0, [None, None])
    assert count_at([], 0.25).false_boxes_per_frame == 0


def test_wrong_class_does_not_count() -> None:
    """A box of the wrong class finds nobody, yet it lies on a person."""
    frames = [frame([(LEFT, (0.1, 0.9))], [(LEFT, 0)])]
    assert average_precision(frames, 1) is None
    counts = count_at(frames, 0.25)
    assert (counts.recall, counts.actions_right) == (1, 0)


def test_doubles_are_false() -> None:
    """A second box on the same person is a false one."""
    frames = [frame([(LEFT, (0.9, 0.0)), (LEFT, (0.8, 0.0))], [(LEFT, 0)])]
    assert count_at(frames, 0.25).false_boxes_per_frame == 1
    assert average_precision(frames, 0) == pytest.approx(1)


def test_a_false_box_that_scores_higher_halves_precision() -> None:
    """One false box above the only right one: precision is a half wherever something is recalled."""
    frames = [frame([(RIGHT, (0.9, 0.0)), (LEFT, (0.5, 0.0))], [(LEFT, 0)])]
    assert average_precision(frames, 0) == pytest.approx(0.5)


def test_ranking_goes_over_all_frames() -> None:
    """Precision and recall are counted over the frames together, best score first."""
    frames = [
        frame([(LEFT, (0.9, 0.0))], [(LEFT, 0)]),
        frame([(LEFT, (0.8, 0.0))], []),
        frame([(LEFT, (0.7, 0.0))], [(LEFT, 0)]),
    ]
    assert average_precision(frames, 0) == pytest.approx(0.5 + 0.5 * 2 / 3)


def test_threshold_leaves_weak_boxes_out() -> None:
    """Boxes under the threshold are not counted."""
    assert count_at([frame([(RIGHT, (0.2, 0.1))], [(LEFT, 0)])], 0.25).false_boxes_per_frame == 0


@pytest.mark.parametrize(("shift", "hit"), [(0.0, 0), (0.13, 0), (0.14, -1), (0.9, -1)])
def test_match_needs_half_overlap(shift: float, hit: int) -> None:
    """A hit needs an overlap of a half."""
    box = np.array([[0 + shift, 0, 0.4 + shift, 1]])
    assert match(box, np.array([LEFT])).tolist() == [hit]


def test_iou_of_empty_arrays() -> None:
    """Nothing against something has an empty table."""
    assert iou(np.zeros((0, 4)), np.array([LEFT])).shape == (0, 1)
    assert match(np.array([LEFT]), np.zeros((0, 4))).tolist() == [-1]
