"""Stored frames of changing sizes and colours as upright RGB of one size."""

from __future__ import annotations

import av
import numpy as np
from av.video.reformatter import Colorspace, VideoReformatter
from numpy.typing import NDArray

from pipeline_ver2.probe import Orientation

_MATRICES = frozenset({0, 1, 2, 4, 5, 6, 7, 9})  # AVCOL_SPC_ of the colour matrices libswscale knows


class RgbConverter:
    """Converts frames to the size of the first. Not thread-safe.

    Args:
        size: (width, height) of the upright frame.
        orientation: How a stored frame becomes upright.
    """

    def __init__(self, size: tuple[int, int], orientation: Orientation) -> None:
        self._stored = size[::-1] if orientation.transpose else size
        self._orientation = orientation
        self._reformatter = VideoReformatter()

    def rgb(self, picture: av.VideoFrame) -> NDArray[np.uint8]:
        """Convert a stored frame: `(height, width, 3)` uint8, RGB, upright, contiguous.

        Colour matrix and range are those the stream names; BT.601 limited where it names none, as FFmpeg takes it, or
        where the matrix is not known.
        """
        matrix = None if has_known_matrix(picture) else Colorspace.ITU601
        converted = self._reformatter.reformat(picture, *self._stored, "rgb24", src_colorspace=matrix, threads=1)
        array = converted.to_ndarray().astype(np.uint8, copy=converted is picture)
        return np.ascontiguousarray(self._orientation.apply(np.ascontiguousarray(array)))


def has_known_matrix(picture: av.VideoFrame) -> bool:
    """Whether the colour matrix the frame names, if it names one, can be converted."""
    return picture.colorspace in _MATRICES
