"""Runs the whole product on the demo clip, and on a clip without people from each seed set."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline_ver2.config import Config
from pipeline_ver2.errors import StageError
from pipeline_ver2.job import Job
from pipeline_ver2.prompts import NOBODY
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import Results
from serving.bench.bars import Bar
from serving.demo.clip_script import KEYFRAME_INTERVAL, SIZE, SLOT_FRAMES, frame_time_s
from serving.demo.figure import Frame
from serving.demo.held_out import SEED_SETS, empty_scene
from serving.demo.make_clip import FOLDER, write_video
from serving.demo.measuring import Tell

FOUND_IN_TIME = ("wave", "run", "fall")
LEAST_SLOTS_RIGHT = 12
MOST_FALSE_BOXES, LEAST_NONE = 1, 0.9

_EMPTY_SLOTS = 10
EMPTY_FRAMES = _EMPTY_SLOTS * SLOT_FRAMES * KEYFRAME_INTERVAL
"""11 s of the clips without people: ten whole slots."""


async def evaluate_clips(config: Config, folder: Path, tell: Tell) -> tuple[dict[str, Any], list[Bar]]:
    """Run the clips through the stages of a configuration, which must be up.

    Args:
        config: Where the stages are.
        folder: For the clips without people and the results; empty.
        tell: Is told of progress.

    Returns:
        `(figures, bars)`; bars hold the worse of the clips without people.

    Raises:
        StageError: A stage is away, or failed on a keyframe.
    """
    truth = json.loads((FOLDER / "clip_truth.json").read_text(encoding="utf-8"))
    demo = demo_figures(await _run(FOLDER / "clip.mp4", folder / "demo", config), truth["slots"])
    tell("the demo clip: done")
    empty: dict[str, dict[str, Any]] = {}
    for label, seed_set in SEED_SETS.items():
        clip = folder / f"nobody-{label}.mp4"
        await asyncio.to_thread(write_video, clip, empty_frames(seed_set))
        empty[label] = empty_figures(await _run(clip, folder / f"nobody-{label}", config))
        tell(f"a clip without people, set {label}: done")
    return {"demo clip": demo, "without people": empty}, bars_of(demo, empty)


def empty_frames(seed_set: range) -> Iterator[Frame]:
    """The pictures of a seed set's clip without people, `(360, 640, 3)` uint8 RGB."""
    scene = empty_scene(seed_set)
    return (scene.render(frame_time_s(index), SIZE)[0] for index in range(EMPTY_FRAMES))


def demo_figures(results: Results, slots: list[dict[str, Any]]) -> dict[str, Any]:
    """How many slots are right, which of the notable actions were found in slots of theirs, and each slot."""
    given = {slot.index: (slot.answer or {}).get("action") for slot in results.slots}
    right = [slot["action"] for slot in slots if given.get(slot["index"]) == slot["action"]]
    return {
        "slots": len(slots),
        "slots right": len(right),
        "slots in which it was found": {action: right.count(action) for action in FOUND_IN_TIME},
        "answers": [
            {"start_s": round(slot.start_s, 2), "right": told["action"], "given": given.get(slot.index)}
            for slot, told in zip(results.slots, slots, strict=True)
        ],
    }


def empty_figures(results: Results) -> dict[str, Any]:
    """Boxes, each of which is false, in all and second by second; and how many slots were said to show nobody."""
    boxes = [0] * (1 + int(results.keyframes[-1].time_s))
    for keyframe in results.keyframes:
        boxes[int(keyframe.time_s)] += len(keyframe.detections)
    given = [(slot.answer or {}).get("action") for slot in results.slots]
    return {
        "keyframes": len(results.keyframes),
        "false boxes": sum(boxes),
        "false boxes by second": boxes,
        "slots": len(given),
        "share of none": given.count(NOBODY) / len(given),
    }


def bars_of(demo: Mapping[str, Any], empty: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    """The bars."""
    false_boxes = max(found["false boxes"] for found in empty.values())
    none = min(found["share of none"] for found in empty.values())
    found = demo["slots in which it was found"]
    return [
        Bar("demo clip: slots right of 13", demo["slots right"], ">=", LEAST_SLOTS_RIGHT),
        *(Bar(f"demo clip: slots in which the {name} was found", found[name], ">=", 1) for name in FOUND_IN_TIME),
        Bar("clip without people: false boxes, worse set", false_boxes, "<=", MOST_FALSE_BOXES),
        Bar("clip without people: share of slots answered none, worse set", none, ">=", LEAST_NONE),
    ]


async def _run(clip: Path, out: Path, config: Config) -> Results:
    results = await run_pipeline(Job(clip, out), config)
    failed = [keyframe for keyframe in results.keyframes if keyframe.state != "ok"]
    if failed:
        raise StageError(f"{clip.name}: keyframe {failed[0].key_index}: {failed[0].reason}")
    return results
