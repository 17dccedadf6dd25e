"""A small clip and settings for the orchestrator's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from pipeline_ver2.config import Config, load_config
from tests.stand_ins import Stages

FRAMES = 145
"""At 30 fps with an interval of 11: 13 keyframes, 4 batches, 5 slots, the last one filled up by two repeats."""


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of 96x64 pixels at 30 fps whose brightness rises from frame to frame."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(FRAMES):
            pixels = np.full((64, 96, 3), 20 + number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def settings_for(stages: Stages, **overrides: Any) -> Config:  # noqa: ANN401 - values of any key
    """A configuration that leads to the stand-ins; keys with `__` for dots."""
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    quick = {"pipeline.retry_for_s": 5.0, "stage1.timeout_s": 5.0, "stage2.timeout_s": 5.0}
    return load_config(None, {**quick, **stages.overrides(), **dotted}, environ={})
