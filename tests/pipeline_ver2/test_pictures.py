"""Stored frames as upright RGB of one size."""

from __future__ import annotations

import av
import numpy as np
import pytest

from pipeline_ver2.pictures import RgbConverter
from pipeline_ver2.probe import Orientation


def halves(width: int, height: int, pixel_format: str) -> av.VideoFrame:
    """A frame whose left half is red, whose right half is blue."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = pixels[:, width // 2 :, 2] = 255
    return av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=pixel_format)


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuvj420p", "nv12", "rgb24"])
@pytest.mark.parametrize("size", [(64, 48), (128, 96), (32, 80)])
def test_frames_of_any_size_come_out_in_one(size: tuple[int, int], pixel_format: str) -> None:
    """Squashed to the first frame's size, red where red was."""
    rgb = RgbConverter((64, 48), Orientation()).rgb(halves(*size, pixel_format))
    assert (rgb.shape, str(rgb.dtype), rgb.flags.c_contiguous) == ((48, 64, 3), "uint8", True)
    assert rgb[:, :28, 0].mean() > 230
    assert rgb[:, :28, 2].mean() < 30
    assert rgb[:, 36:, 2].mean() > 230


def test_a_turned_frame_comes_out_upright() -> None:
    """A camera that is mounted on its side: what was left is at the top."""
    turned = RgbConverter((48, 64), Orientation(transpose=True)).rgb(halves(64, 48, "yuv420p"))
    assert turned.shape == (64, 48, 3)
    assert turned[:28, :, 0].mean() > 230
    assert turned[36:, :, 2].mean() > 230


def test_colours_of_an_unknown_matrix_are_no_error() -> None:
    """They are read as BT.601."""
    frame = halves(64, 48, "yuv420p")
    frame.colorspace = 14
    assert RgbConverter((64, 48), Orientation()).rgb(frame)[:, :28, 0].mean() > 200
