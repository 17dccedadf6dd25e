"""An emulation of the detector with a fixed service time, for benchmarks and tests of everything around it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.config import Stage1Config
from serving.workers.postprocess import BOX_SIDES, ClipOutput
from serving.workers.stage1_engine import ModelInfo, RawBatch, findings
from serving.workers.stage1_labels import labels_of_file

EMULATED_LABELS = ("stand", "walk", "run", "jump", "wave", "fall")
EMULATED_SIZE = (224, 224)
EMULATED_NOTE = "emulated: a fixed service time and made-up detections, no model"


class EmulatedDetector:
    """Sleeps like a detector would work, up to `batch_size` clips in one go; detections depend on the pixels only."""

    def __init__(self, config: Stage1Config) -> None:
        self.info = ModelInfo(
            platform="emulated",
            provider="emulated",
            source="emulated",
            labels=labels_of_file(config.labels_path) if config.labels_path else EMULATED_LABELS,
            clip_length=config.clip_length,
            image_size=EMULATED_SIZE,
            note=EMULATED_NOTE,
            chunk=config.batch_size,
        )
        self._batch_size = config.batch_size
        self._service_s = config.emulated.service_s
        self._closed = threading.Event()

    def run(self, clips: Sequence[NDArray[np.uint8]]) -> RawBatch:
        """See `Engine.run`."""
        due = time.monotonic() + self._service_s * math.ceil(len(clips) / self._batch_size)
        raws = [self._raw(clip) for clip in clips]
        self._closed.wait(max(0.0, due - time.monotonic()))
        return RawBatch(raws)

    def detect(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        """See `Detector.detect`."""
        return findings(self.run(list(clips)).clips, self.info, threshold, nms_iou)

    def close(self) -> None:
        """Wake a sleeping call."""
        self._closed.set()

    def _raw(self, clip: NDArray[np.uint8]) -> NDArray[np.float32]:
        """One box in the middle, `(4 + C, 1)`; its label depends on the brightness of the last frame."""
        height, width = EMULATED_SIZE
        raw = np.full((BOX_SIDES + len(self.info.labels), 1), 0.05, np.float32)
        raw[:BOX_SIDES, 0] = width / 2, height / 2, width / 4, height / 2
        raw[BOX_SIDES + int(clip[-1].mean()) % len(self.info.labels)] = 0.9
        return raw
