"""What the detector's reply says of each clip."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ver2 import wire
from pipeline_ver2.errors import BadReply
from pipeline_ver2.findings import ClipFindings, read_findings

LABELS = ("stand", "walk", "run")


def reply(**changed: np.ndarray) -> tuple[dict[str, str], bytes]:
    """A reply to two clips: one person in the first, nobody in the second."""
    tensors = {
        "status": np.zeros((2, 1), np.int32),
        "num_detections": np.array([[1], [0]], np.int32),
        "boxes": np.array([[[0.1, 0.2, 0.5, 1]], [[0, 0, 0, 0]]], np.float32),
        "scores": np.array([[[0.3, 0.9, 0.1]], [[0, 0, 0]]], np.float32),
    }
    parts, length = wire.pack_tensors({**tensors, **changed}, kind="outputs")
    return {wire.OIP_HEAD_LENGTH_HEADER: str(length)}, b"".join(parts)


@pytest.mark.fault("A1")
@pytest.mark.fault("A4")
def test_boxes_come_out_in_pixels_of_the_frame_with_all_their_labels() -> None:
    """x is scaled by the width and y by the height; a person keeps every label over the threshold, best first."""
    first, second = read_findings(*reply(), 2)

    assert isinstance(first, ClipFindings)
    assert isinstance(second, ClipFindings)
    (person,) = first.detections(LABELS, threshold=0.25, size=(640, 360))
    assert person.box == pytest.approx((64, 72, 320, 360), abs=1e-3)
    assert [label.name for label in person.labels] == ["walk", "stand"]
    assert [label.score for label in person.labels] == pytest.approx([0.9, 0.3])
    assert second.detections(LABELS, threshold=0.25, size=(640, 360)) == ()


def test_a_box_without_a_label_over_the_threshold_is_nobody() -> None:
    """A stand-in's box whose best score is below the threshold is left out."""
    first, _ = read_findings(*reply(), 2)

    assert isinstance(first, ClipFindings)
    assert first.detections(LABELS, threshold=0.95, size=(640, 360)) == ()


@pytest.mark.fault("A5")
def test_a_clip_with_a_status_or_infinite_numbers_fails_alone() -> None:
    """The other clip of the batch keeps its findings."""
    status = np.array([[0], [2]], np.int32)
    boxes = np.array([[[np.nan, 0, 1, 1]], [[0, 0, 0, 0]]], np.float32)

    ok, bad = read_findings(*reply(status=status), 2)
    infinite, fine = read_findings(*reply(boxes=boxes), 2)
    assert isinstance(ok, ClipFindings)
    assert isinstance(bad, BadReply)
    assert isinstance(infinite, BadReply)
    assert isinstance(fine, ClipFindings)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_detections": np.array([[2], [0]], np.int32)},
        {"num_detections": np.array([[-1], [0]], np.int32)},
        {"boxes": np.zeros((2, 1, 5), np.float32)},
        {"scores": np.zeros((2, 2, 3), np.float32)},
        {"status": np.zeros((3, 1), np.int32)},
        {"boxes": np.zeros((1, 1, 4), np.float32), "scores": np.zeros((1, 1, 3), np.float32)},
    ],
)
def test_a_reply_that_breaks_the_contract_is_refused_whole(changed: dict[str, np.ndarray]) -> None:
    """Counts and shapes that do not belong together raise BadReply."""
    with pytest.raises(BadReply):
        read_findings(*reply(**changed), 2)
