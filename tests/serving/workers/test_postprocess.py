"""Raw detector output to boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from serving.workers.postprocess import MAX_BOXES, ClipOutput, postprocess

SIZE = (100, 200)  # height, width


def _run(
    *candidates: tuple[float, ...], threshold: float = 0.25, nms_iou: float = 0.45, classes: int = 2
) -> ClipOutput:
    """Postprocess one clip; a candidate is centre-x, centre-y, width, height in pixels, then its scores."""
    raw = np.asarray(candidates, np.float32).reshape(-1, 4 + classes).T
    (output,) = postprocess(raw[None], SIZE, threshold, nms_iou)
    return output


def test_nothing_gives_nothing() -> None:
    """No candidates, and no clips, are no findings."""
    output = _run()
    assert (output.findings.boxes.shape, output.findings.scores.shape) == ((0, 4), (0, 2))
    assert output.problem is None
    assert postprocess(np.zeros((0, 6, 5), np.float32), SIZE, 0.25, 0.45) == []


@pytest.mark.fault("A1")
def test_x_and_y_are_scaled_apart_and_clipped() -> None:
    """Boxes are in 0..1 of the frame, each side by its own length, and end at the frame."""
    output = _run((100, 50, 40, 20, 0.9, 0), (0, 100, 40, 20, 0.8, 0))
    np.testing.assert_allclose(output.findings.boxes, [[0.4, 0.4, 0.6, 0.6], [0, 0.9, 0.1, 1]])


@pytest.mark.fault("A2")
def test_scores_are_passed_on_unchanged() -> None:
    """No second sigmoid: the scores are the model's."""
    output = _run((100, 50, 40, 20, 0.75, 0.5))
    np.testing.assert_array_equal(output.findings.scores, np.asarray([[0.75, 0.5]], np.float32))


@pytest.mark.fault("A2")
@pytest.mark.parametrize("score", [-3.0, 4.5])
def test_scores_that_are_none_are_a_problem(score: float) -> None:
    """Logits instead of scores make the clip fail, with the range that was found."""
    output = _run((100, 50, 40, 20, score, 0.5), (10, 50, 10, 10, 0.3, 0.5))
    assert output.problem is not None
    assert f"{score:.3g}" in output.problem
    assert len(output.findings.boxes) == 0


@pytest.mark.fault("A4")
def test_one_person_keeps_several_actions() -> None:
    """One box with two high scores stays one box with both."""
    output = _run((100, 50, 40, 20, 0.8, 0.7))
    np.testing.assert_allclose(output.findings.scores, [[0.8, 0.7]], rtol=1e-6)


def test_the_threshold_is_inclusive() -> None:
    """A best score equal to the threshold stays, one below goes."""
    kept = _run((50, 50, 10, 10, 0.3, 0), (100, 50, 10, 10, 0.29, 0), (150, 50, 10, 10, 0, 0.5), threshold=0.3)
    np.testing.assert_allclose(kept.findings.scores.max(axis=1), [0.5, 0.3], rtol=1e-6)


def test_suppression_knows_no_classes() -> None:
    """Of two overlapping boxes the lower goes, even if its action is another; apart both stay."""
    first, second = (100, 50, 40, 40, 0.9, 0), (104, 50, 40, 40, 0, 0.8)
    assert len(_run(second, first).findings.boxes) == 1
    np.testing.assert_allclose(_run(second, first).findings.scores, [[0.9, 0]], rtol=1e-6)
    assert len(_run(first, second, nms_iou=0.9).findings.boxes) == 2


def test_suppression_goes_by_overlap() -> None:
    """Intersection over union exactly at the limit stays, over it goes."""
    half_shared = ((50.0, 50.0, 40.0, 40.0, 0.9, 0.0), (50.0, 60.0, 40.0, 20.0, 0.8, 0.0))  # IoU 0.5
    assert len(_run(*half_shared, nms_iou=0.5).findings.boxes) == 2
    assert len(_run(*half_shared, nms_iou=0.49).findings.boxes) == 1


def test_the_number_of_boxes_is_bounded() -> None:
    """At most so many boxes leave, the best ones, however many candidates come."""
    count = 3000
    rng = np.random.default_rng(3)
    raw = np.zeros((1, 5, count), np.float32)
    raw[0, 0], raw[0, 1] = np.arange(count) % 60 * 3 + 2, np.arange(count) // 60 % 30 * 3 + 2
    raw[0, 2:4] = 1
    raw[0, 4] = rng.uniform(0.3, 1, count)
    (output,) = postprocess(raw, SIZE, 0.25, 0.45)
    assert len(output.findings.boxes) == MAX_BOXES
    assert output.findings.scores[0] == raw[0, 4].max()


def test_boxes_without_area_are_no_boxes() -> None:
    """Outside the frame, of no size, of negative size: not kept."""
    assert len(_run((300, 50, 40, 20, 0.9, 0), (50, 50, 0, 9, 0.9, 0), (9, 9, -5, 5, 0.9, 0)).findings.boxes) == 0


@pytest.mark.fault("A5")
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 3, 4])
def test_non_finite_candidates_are_dropped_and_counted(number: float, row: int) -> None:
    """A candidate with a NaN or infinity anywhere goes alone; its neighbours stay."""
    spoilt = [150.0, 50, 40, 20, 0.9, 0]
    spoilt[row] = number
    output = _run(tuple(spoilt), (50, 50, 40, 20, 0.8, 0))
    assert output.nonfinite == 1
    assert output.problem is None
    np.testing.assert_allclose(output.findings.scores, [[0.8, 0]], rtol=1e-6)


@pytest.mark.fault("A5")
def test_nothing_finite_is_a_problem_of_that_clip_alone() -> None:
    """A clip of nothing but NaN fails with its reason; the other clip of the batch does not notice."""
    raw = np.zeros((2, 6, 1), np.float32)
    raw[0] = np.nan
    raw[1, :, 0] = 50, 50, 40, 20, 0.9, 0
    spoilt, good = postprocess(raw, SIZE, 0.25, 0.45)
    assert spoilt.problem is not None
    assert (len(spoilt.findings.boxes), spoilt.nonfinite) == (0, 1)
    assert (good.problem, len(good.findings.boxes)) == (None, 1)


_RAW = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 2), st.integers(4, 7), st.integers(0, 12)),
    elements=st.one_of(st.floats(-1, 1.5, width=32), st.floats(width=32)),
)


@settings(deadline=None)
@given(_RAW, st.floats(0, 1), st.floats(0, 1))
def test_any_output_gives_boxes_within_the_contract(raw: NDArray[np.float32], threshold: float, nms_iou: float) -> None:
    """Whatever the model says: finite boxes inside the frame, scores in 0..1, best first, all over the threshold."""
    outputs = postprocess(raw, SIZE, threshold, nms_iou)
    assert len(outputs) == len(raw)
    for output in outputs:
        boxes, scores = output.findings.boxes, output.findings.scores
        assert boxes.shape == (len(scores), 4)
        assert scores.shape[1] == raw.shape[1] - 4
        assert np.isfinite(boxes).all()
        assert ((boxes >= 0) & (boxes <= 1)).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert ((scores >= 0) & (scores <= 1)).all()
        best = scores.max(axis=1, initial=0)
        assert (np.diff(best) <= 0).all()
        assert (best >= np.float32(threshold)).all()
