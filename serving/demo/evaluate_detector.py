"""Measures the embedded detector on held-out scenes, through the code of the Stage 1 daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ver2.config import Stage1Config
from serving.demo import seeds
from serving.demo.bars import Bar
from serving.demo.detection_metrics import FrameResult, count_at, mean_average_precision
from serving.demo.detector_data import ClipSample, sample_clip
from serving.demo.skeleton import LABELS
from serving.workers.stage1_model import EMBEDDED_MODEL, Detector, OnnxDetector

SEED_SETS: Mapping[str, range] = {"A": seeds.VALIDATION_A, "B": seeds.VALIDATION_B}
CURVE_FROM = 0.01
THRESHOLD = 0.25
FRAME_RATES = (30.0, 15.0)
FLOOR = 0.80
GOALS: Mapping[float, float] = {30.0: 0.93, 15.0: 0.90}
MOST_FALSE_BOXES = 0.15

_VIDEO_HEIGHT = 360
_BATCH = 4
_NMS_IOU = 0.45


def evaluate_detector(clips: int, model: Path = EMBEDDED_MODEL) -> tuple[dict[str, Any], list[Bar]]:
    """Measure the detector on both seed sets and both frame rates.

    Args:
        clips: How many clips of each set.
        model: The ONNX file.

    Returns:
        `(figures, bars)`; bars hold the mean of the seed sets.

    Raises:
        ConfigError: The file cannot be loaded.
    """
    detector = OnnxDetector(Stage1Config(model_path=model, threads=1, provider="cpu", threshold=CURVE_FROM))
    figures = {
        f"{rate:g} fps": {name: measure(detector, seed_set, clips, rate) for name, seed_set in SEED_SETS.items()}
        for rate in FRAME_RATES
    }
    return {"clips": clips, "model": model.name, **figures}, _bars(figures)


def measure(detector: Detector, seed_set: range, clips: int, source_fps: float) -> dict[str, Any]:
    """Figures of one seed set at one frame rate of the videos."""
    frames: list[FrameResult] = []
    for start in range(0, clips, _BATCH):
        numbers = range(start, min(clips, start + _BATCH))
        samples = [_sample(seed_set, number, source_fps) for number in numbers]
        frames += detect(detector, samples)
    mean, by_class = mean_average_precision(frames, len(LABELS))
    return {
        "map50": mean,
        "ap50": dict(zip(LABELS, by_class, strict=True)),
        "people": sum(len(frame.true_boxes) for frame in frames),
        **asdict(count_at(frames, THRESHOLD)),
    }


def detect(detector: Detector, samples: list[ClipSample]) -> list[FrameResult]:
    """What the daemon's code finds in some clips, beside the truth."""
    outputs = detector.detect(np.stack([sample.frames for sample in samples]), CURVE_FROM, _NMS_IOU)
    return [
        FrameResult(
            boxes=output.findings.boxes,
            scores=output.findings.scores,
            true_boxes=np.array([person.box for person in sample.persons], np.float64).reshape(-1, 4),
            true_labels=np.array([LABELS.index(person.action) for person in sample.persons], np.int64),
        )
        for output, sample in zip(outputs, samples, strict=True)
    ]


def _sample(seed_set: range, number: int, source_fps: float) -> ClipSample:
    return sample_clip(seeds.generator(seed_set, number), source_fps=source_fps, height=_VIDEO_HEIGHT)


def _bars(figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Bar]:
    bars: list[Bar] = []
    for rate in FRAME_RATES:
        sets = figures[f"{rate:g} fps"].values()
        mean, false_boxes = (
            float(np.mean([found[key] for found in sets])) for key in ("map50", "false_boxes_per_frame")
        )
        bars.append(Bar(f"detector mAP@0.5, {rate:g} fps, floor", mean, ">=", FLOOR, floor=True))
        bars.append(Bar(f"detector mAP@0.5, {rate:g} fps", mean, ">=", GOALS[rate]))
        bars.append(Bar(f"detector false boxes a frame, {rate:g} fps", false_boxes, "<=", MOST_FALSE_BOXES))
    return bars
