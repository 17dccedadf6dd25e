"""Measures the embedded answerer on held-out slots, exactly as the product asks.

    python -m serving.demo.evaluate_answerer [--json]

Findings come from the embedded detector, run over the 16 frames before each picture, if its file is there; else they
are simulated as in training. A second measure always simulates them, one third wrong, to show that the answerer looks
at the pictures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline_ver2.config import PipelineConfig, Stage1Config
from pipeline_ver2.errors import AnswerError
from pipeline_ver2.main import resize
from pipeline_ver2.prompts import NOBODY, read_answer
from serving.demo import seeds
from serving.demo.answerer import MODEL_FOLDER, Answerer, load
from serving.demo.answerer_slots import Findings, Slot, Take, question_of, sample_slot, sample_take, slot_of
from serving.demo.bars import Bar
from serving.demo.world import LABELS, sample_aspect
from serving.workers.stage1_model import EMBEDDED_MODEL, Detector, OnnxDetector

SEED_SETS: Mapping[str, range] = {"A": seeds.VALIDATION_A, "B": seeds.VALIDATION_B}
FLOOR, GOAL, ALONE_GOAL = 0.70, 0.90, 0.95

# The detector is measured on the first scenes of the seed sets.
_FIRST_SEED = 50_000
_WIDE_VIDEOS, _NARROW_VIDEOS = ((360, 640), (432, 768)), ((480, 640), (256, 340))
_NMS_IOU = 0.45


@dataclass(frozen=True, slots=True)
class Result:
    """One answered slot: the right action, the given one (None: no valid answer), and what goes with it."""

    right: str
    given: str | None
    persons: int
    misled: bool
    confirmed_right: bool
    description_right: bool


def evaluate_answerer(
    slots: int, folder: Path = MODEL_FOLDER, detector: Path = EMBEDDED_MODEL
) -> tuple[dict[str, Any], list[Bar]]:
    """Measure the answerer on both seed sets.

    Args:
        slots: How many slots of each set, for each measure.
        folder: The answerer's folder.
        detector: The detector's ONNX file; without it findings are simulated.

    Returns:
        `(figures, bars)`; bars hold the mean of the seed sets.
    """
    answerer = load(folder)
    measures: dict[str, Callable[[range], Iterator[Slot]]] = {
        "findings simulated, one third wrong": lambda seed_set: _simulated(seed_set, slots)
    }
    if detector.exists():
        found = OnnxDetector(Stage1Config(model_path=detector, threads=1, provider="cpu"))
        measures = {"findings of the detector": lambda seed_set: _detected(seed_set, slots, found), **measures}
    figures = {
        name: {
            label: summary([ask(answerer, slot) for slot in drawn(seed_set)]) for label, seed_set in SEED_SETS.items()
        }
        for name, drawn in measures.items()
    }
    return {"slots": slots, "model": folder.name, **figures}, _bars(next(iter(figures.values())))


def ask(answerer: Answerer, slot: Slot) -> Result:
    """Ask about one slot and compare."""
    settings = PipelineConfig()
    question = question_of(slot, settings)
    names = {label.name for found in slot.findings for person in found for label in person.labels}
    expected = slot.truth.action in names if names else None
    try:
        body = read_answer(answerer.answer(question, settings), question, settings).body
    except AnswerError:
        body = {}
    return Result(
        right=slot.truth.action,
        given=body.get("action"),
        persons=len(slot.truth.actors),
        misled=bool(names) and slot.truth.action not in names,
        confirmed_right=bool(body) and body["confirmed"] == expected,
        description_right=body.get("description") == slot.truth.description,
    )


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Shares over results: right actions in all, by action, by number of people; valid JSON; right `confirmed`."""
    by_action = {name: [result for result in results if result.right == name] for name in (*LABELS, NOBODY)}
    by_people = {str(count): [result for result in results if result.persons == count] for count in range(3)}
    return {
        "right": _share(results),
        "right by action": {name: _share(chosen) for name, chosen in by_action.items()},
        "right by people": {count: _share(chosen) for count, chosen in by_people.items()},
        "right where the findings lack the action": _share([result for result in results if result.misled]),
        "valid": _mean([result.given is not None for result in results]),
        "confirmed right": _mean([result.confirmed_right for result in results]),
        "whole answer right": _mean([result.given == result.right and result.description_right for result in results]),
    }


def find(detector: Detector, take: Take, size: tuple[int, int]) -> Findings:
    """What the detector says of each picture of a take, as the product asks it.

    Args:
        detector: The detector.
        take: The slot's scene and grid frames.
        size: `(height, width)` of the video.
    """
    length, shown = detector.info.clip_length, dict[float, Any]()
    for number, time_s in zip(take.numbers, take.times_s, strict=True):
        if time_s not in shown:
            times = take.grid([max(0, number - back) for back in reversed(range(length))])
            drawn = {
                moment: resize(take.scene.render(moment, size)[0], detector.info.image_size) for moment in set(times)
            }
            shown[time_s] = np.stack([drawn[moment] for moment in times])
    settings = Stage1Config()
    outputs = detector.detect(np.stack(list(shown.values())), settings.threshold, _NMS_IOU)
    found = {
        time_s: output.findings.detections(detector.info.labels, threshold=settings.threshold, size=(size[1], size[0]))
        for time_s, output in zip(shown, outputs, strict=True)
    }
    return tuple(found[time_s] for time_s in take.times_s)


def _simulated(seed_set: range, slots: int) -> Iterator[Slot]:
    for number in range(slots):
        rng = seeds.generator(seed_set, _FIRST_SEED + slots + number)
        yield sample_slot(rng, _video(rng))


def _detected(seed_set: range, slots: int, detector: Detector) -> Iterator[Slot]:
    for number in range(slots):
        rng = seeds.generator(seed_set, _FIRST_SEED + number)
        size = _video(rng)
        take = sample_take(rng, size[1] / size[0], two_share=0.35)
        yield replace(slot_of(rng, take, size), findings=find(detector, take, size), labels=LABELS)


def _video(rng: np.random.Generator) -> tuple[int, int]:
    videos = _WIDE_VIDEOS if sample_aspect(rng) > 1.5 else _NARROW_VIDEOS
    return videos[rng.integers(len(videos))]


def _share(results: Sequence[Result]) -> float | None:
    """Share of right actions; None without results."""
    return _mean([result.given == result.right for result in results]) if results else None


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / max(1, len(values))


def _bars(sets: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    right, valid, confirmed = (
        float(np.mean([figures[key] for figures in sets.values()])) for key in ("right", "valid", "confirmed right")
    )
    alone = float(np.mean([figures["right by people"]["1"] or 0.0 for figures in sets.values()]))
    return [
        Bar("answerer right actions, floor", right, ">=", FLOOR, floor=True),
        Bar("answerer right actions", right, ">=", GOAL),
        Bar("answerer right actions, one person", alone, ">=", ALONE_GOAL),
        Bar("answerer valid JSON", valid, ">=", 1.0, floor=True),
        Bar("answerer right confirmed", confirmed, ">=", GOAL),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if the model is below the floor it must not be shipped under, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=400, help="slots of each of the two seed sets")
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="the answerer's folder")
    parser.add_argument("--detector", type=Path, default=EMBEDDED_MODEL, help="the detector's ONNX file")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    figures, bars = evaluate_answerer(options.slots, options.model, options.detector)
    report = {"answerer": figures, "bars": [bar.described() for bar in bars]}
    sys.stdout.write(json.dumps(report, indent=None if options.json else 2) + "\n")
    return int(any(bar.floor and not bar.ok for bar in bars))


if __name__ == "__main__":
    raise SystemExit(main())
