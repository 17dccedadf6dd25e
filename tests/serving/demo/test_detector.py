"""The detector's network and its contract."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving.demo.detector import CLIP_LENGTH, MEAN, SIDE, STD, STRIDES, Detector, normalised
from serving.workers.stage1_model import preprocess


@pytest.fixture(scope="module")
def detector() -> Detector:
    """A network with random weights."""
    torch.manual_seed(0)
    return Detector().eval()


@pytest.mark.parametrize("batch", [1, 3])
def test_output_is_boxes_and_scores(detector: Detector, batch: int) -> None:
    """Ten rows an anchor: a box of positive size and six scores in 0..1."""
    with torch.inference_mode():
        output = detector(torch.randn(batch, 3, CLIP_LENGTH, SIDE, SIDE))
    assert output.shape == (batch, 10, sum((SIDE // stride) ** 2 for stride in STRIDES))
    assert (output[:, 2:4] > 0).all()
    assert ((output[:, 4:] >= 0) & (output[:, 4:] <= 1)).all()


def test_raw_and_exported_output_are_the_same_boxes(detector: Detector) -> None:
    """Training sees corners and logits of the boxes and scores that are exported."""
    clip = torch.randn(1, 3, CLIP_LENGTH, SIDE, SIDE)
    halved = torch.nn.functional.avg_pool3d(clip, (1, 2, 2))
    with torch.inference_mode():
        boxes, logits = detector.raw(clip[:, :, -1], halved)
        output = detector(clip)
    corners = torch.cat((output[:, :2] - output[:, 2:4] / 2, output[:, :2] + output[:, 2:4] / 2), dim=1)
    torch.testing.assert_close(corners.transpose(1, 2), boxes, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(output[:, 4:].transpose(1, 2), torch.sigmoid(logits), atol=1e-5, rtol=1e-4)


def test_order_of_frames_matters(detector: Detector) -> None:
    """The network sees motion and knows which frame is the last one."""
    clip = torch.randn(1, 3, CLIP_LENGTH, SIDE, SIDE)
    middle_swapped = clip[:, :, [0, 2, 1, *range(3, CLIP_LENGTH)]]
    with torch.inference_mode():
        assert not torch.equal(detector(clip), detector(middle_swapped))


def test_training_normalises_as_the_daemon_does() -> None:
    """The network is fed in training what the Stage 1 daemon feeds it."""
    clips = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8, 3), dtype=np.uint8)
    expected = preprocess(clips)
    found = normalised(torch.from_numpy(clips)).permute(0, 4, 1, 2, 3).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(MEAN) == len(STD) == 3


def test_model_is_small() -> None:
    """The whole network stays under 1.4 million weights."""
    assert sum(value.numel() for value in Detector().parameters()) < 1_400_000
