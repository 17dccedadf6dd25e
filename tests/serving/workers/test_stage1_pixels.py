"""Scaling of pixels, in numpy and fused into the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from pipeline_ver2.config import Config
from serving.workers.stage1_contract import read_contract, read_model
from serving.workers.stage1_pixels import PIXELS, fuse, normalise_into, planes_into, preprocess
from tests import tiny_detector as tiny

MakeConfig = Callable[..., Config]


@pytest.mark.fault("A3")
def test_pixels_are_normalised_as_in_training() -> None:
    """A fixed colour gives the numbers of the recipe: /255, ImageNet's mean and deviation, channels R, G, B."""
    clip = np.empty((1, 2, 3, 5, 3), np.uint8)
    clip[:] = (255, 128, 0)
    batch = preprocess(clip)
    assert batch.shape == (1, 3, 2, 3, 5)
    assert batch.dtype == np.float32
    expected = [(1 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (0 - 0.406) / 0.225]
    for channel in range(3):
        np.testing.assert_allclose(batch[0, channel], expected[channel], rtol=1e-5)


def test_pixels_keep_their_places() -> None:
    """Time, rows and columns are not mixed up while the channels move to the front."""
    clips = np.random.default_rng(1).integers(0, 256, (2, 3, 4, 5, 3), dtype=np.uint8)
    batch = preprocess(clips)
    expected = (clips / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(batch, expected.transpose(0, 4, 1, 2, 3), rtol=1e-4, atol=1e-5)


@pytest.fixture
def clips() -> NDArray[np.uint8]:
    """Three clips of noise, `(3, T, H, W, 3)`."""
    shape = (3, tiny.CLIP_LENGTH, tiny.HEIGHT, tiny.WIDTH, 3)
    return np.random.default_rng(2).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.fault("A3")
def test_planes_are_red_green_blue(clips: NDArray[np.uint8]) -> None:
    """The copy into planes moves the channels to the front and nothing else, read-only and odd clips too."""
    clips.flags.writeable = False
    for clip in (clips[0], clips[1, :1], clips[2, :, :7, :5]):
        out = np.zeros((3, *clip.shape[:3]), np.uint8)
        planes_into(clip, out)
        np.testing.assert_array_equal(out, clip.transpose(3, 0, 1, 2))


def test_half_precision_is_near(clips: NDArray[np.uint8]) -> None:
    """Normalised into float16, numbers differ by its rounding only."""
    out = np.empty((3, *clips.shape[1:4]), np.float16)
    normalise_into(clips[0], out)
    np.testing.assert_allclose(out, preprocess(clips[:1])[0], atol=2e-3)


@pytest.mark.fault("A3")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("batch", ["batch", 3])
def test_the_fused_model_is_the_model(
    stage1_config: MakeConfig, tmp_path: Path, clips: NDArray[np.uint8], batch: int | str, *, half: bool
) -> None:
    """Planes of bytes into the fused model give what normalised pixels give in the file as it is."""
    path = tiny.write_detector(tmp_path / "model.onnx", half=half, batch=batch)
    model = read_model(path)
    contract = read_contract(model, stage1_config().stage1)
    fused = _session(fuse(model, contract))
    (given,) = fused.get_inputs()
    assert (given.name, given.type, given.shape) == (PIXELS, "tensor(uint8)", [batch, 3, 4, 32, 48])
    found = fused.run(None, {PIXELS: np.ascontiguousarray(clips.transpose(0, 4, 1, 2, 3))})[0]
    kind = np.float16 if half else np.float32
    expected = _session(path.read_bytes()).run(None, {"frames": preprocess(clips).astype(kind)})[0]
    np.testing.assert_allclose(found, expected, atol=2e-3 if half else 1e-5)
    assert found.dtype == kind


def _session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
