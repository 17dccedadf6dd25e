"""Measures a detector on held-out clips, through the orchestrator's own client of the Stage 1 daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from pipeline_ver2.config import Config
from pipeline_ver2.findings import ClipFindings
from pipeline_ver2.stage_clients import Stage1Client
from serving.bench.bars import Bar
from serving.demo.detection_metrics import FrameResult, count_at, mean_average_precision
from serving.demo.detector_data import ClipSample
from serving.demo.held_out import SEED_SETS, draw_clip
from serving.demo.measuring import Tell, check_labels, drawn_and_asked, new_run, spread, telling, whole
from serving.demo.skeleton import LABELS

CURVE_FROM = 0.01
"""The threshold asked for; a reply holds at most the 100 best boxes of a clip."""
FRAME_RATES = (30.0, 15.0)
GOALS: Mapping[float, float] = {30.0: 0.93, 15.0: 0.90}
MOST_FALSE_BOXES = 0.15


async def evaluate_detector(config: Config, clips: int, tell: Tell) -> tuple[dict[str, Any], list[Bar]]:
    """Measure the Stage 1 of a configuration, which must be up, on both seed sets and both frame rates.

    Args:
        config: Where Stage 1 is, its threshold for counting.
        clips: How many clips of each set.
        tell: Is told of progress.

    Returns:
        `(figures, bars)`; bars hold the worse of the seed sets.

    Raises:
        ConfigError: The detector has other labels than the demo world.
        StageError: It is away, or answers nonsense.
    """
    asked = config.stage1.model_copy(update={"threshold": CURVE_FROM})
    async with Stage1Client(asked, retry_for_s=config.pipeline.retry_for_s) as client:
        info = await client.describe()
        check_labels(info)
        figures: dict[str, Any] = {}
        for rate in FRAME_RATES:
            name = f"{rate:g} fps"
            sets: dict[str, dict[str, Any]] = {}
            for label, seed_set in SEED_SETS.items():
                said = telling(f"detector, {name}, set {label}, clips", tell)
                frames = await _detect_all(client, range(clips), partial(draw_clip, seed_set, source_fps=rate), said)
                sets[label] = summary(frames, config.stage1.threshold)
            figures[name] = {**sets, "spread": spread(sets)}
    told = {"clips": clips, "threshold": config.stage1.threshold, "model": info.file, "engine": info.engine}
    return {**told, **figures}, bars_of(figures)


def bars_of(figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Bar]:
    """The bars, which both seed sets must reach."""
    bars: list[Bar] = []
    for rate in FRAME_RATES:
        name = f"{rate:g} fps"
        sets = [figures[name][label] for label in SEED_SETS]
        worst, false_boxes = (
            min(found["map50"] for found in sets),
            max(found["false_boxes_per_frame"] for found in sets),
        )
        bars.append(Bar(f"detector mAP@0.5, {name}, worse set", worst, ">=", GOALS[rate]))
        bars.append(Bar(f"detector false boxes a frame, {name}, worse set", false_boxes, "<=", MOST_FALSE_BOXES))
    return bars


def summary(frames: Sequence[FrameResult], threshold: float) -> dict[str, Any]:
    """Figures over frames: the curve over everything asked for, counts at the product's threshold."""
    mean, by_class = mean_average_precision(frames, len(LABELS))
    return {
        "map50": mean,
        "ap50": dict(zip(LABELS, by_class, strict=True)),
        **asdict(count_at(frames, threshold)),
        "people": sum(len(frame.true_boxes) for frame in frames),
        "most_boxes": max((len(frame.boxes) for frame in frames), default=0),
    }


async def _detect_all(
    client: Stage1Client, numbers: range, draw: Callable[[int], ClipSample], tell: Tell
) -> list[FrameResult]:
    """One request for each clip; those that are there at the same time make a batch in the daemon."""
    run = new_run()

    async def ask(number: int, sample: ClipSample) -> FrameResult:
        found = await client.detect([sample.frames], key=f"{run}/clip-{number}")
        return _beside_truth(whole(found.clips[0]), sample)

    return await drawn_and_asked(numbers, draw, ask, tell)


def _beside_truth(findings: ClipFindings, sample: ClipSample) -> FrameResult:
    return FrameResult(
        boxes=findings.boxes,
        scores=findings.scores,
        true_boxes=np.array([person.box for person in sample.persons], np.float64).reshape(-1, 4),
        true_labels=np.array([LABELS.index(person.action) for person in sample.persons], np.int64),
    )
