"""Runs the product on real videos and says what comes out: `python -m serving.demo.evaluate_videos FOLDER`.

The embedded models know drawn people only, so this measures nothing: it shows what they do elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline_ver2.config import Config
from pipeline_ver2.job import Job
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import Results
from serving.bench.daemons import temporary_folder
from serving.demo.measuring import Tell, add_daemon_options, conclude, config_of, stages_up, tell

_VIDEOS = frozenset({".avi", ".mkv", ".mov", ".mp4", ".webm"})
_INVALID = "no valid answer"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all videos of a folder and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the videos lie")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_daemon_options(parser)
    options = parser.parse_args(arguments)
    videos = sorted(path for path in options.folder.glob("*") if path.suffix.lower() in _VIDEOS)
    if not videos:
        parser.error(f"{options.folder} holds no videos")
    with temporary_folder() as folder:
        figures = conclude(run_videos(config_of(options, folder), videos, folder, tell))
    sys.stdout.write((json.dumps({"videos": figures}) if options.json else table(figures)) + "\n")
    return 0


async def run_videos(config: Config, videos: Iterable[Path], folder: Path, tell: Tell) -> dict[str, dict[str, Any]]:
    """What comes out of each video, by its name; stages that are not up are started.

    Raises:
        VideoError: A file cannot be used.
        StageError: A stage is away.
    """
    figures: dict[str, dict[str, Any]] = {}
    async with stages_up(config, ("stage1", "stage2")):
        for video in videos:
            figures[video.name] = told(await run_pipeline(Job(video, folder / video.name), config))
            tell(f"{video.name}: done")
    return figures


def told(results: Results) -> dict[str, Any]:
    """Boxes by their best action, answers by theirs, and how many answers confirm what the detector said."""
    boxes = Counter(person.labels[0].name for keyframe in results.keyframes for person in keyframe.detections)
    answers = [slot.answer or {} for slot in results.slots]
    return {
        "keyframes": len(results.keyframes),
        "keyframes with boxes": sum(bool(keyframe.detections) for keyframe in results.keyframes),
        "boxes": dict(boxes.most_common()),
        "slots": len(answers),
        "answers": dict(Counter(answer.get("action", _INVALID) for answer in answers).most_common()),
        "confirmed": sum(answer.get("confirmed") is True for answer in answers),
    }


def table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures as a Markdown table."""
    lines = ["| video | keyframes, with boxes | boxes | slots, confirmed | answers |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {found['keyframes']}, {found['keyframes with boxes']} | {_counts(found['boxes'])} "
        f"| {found['slots']}, {found['confirmed']} | {_counts(found['answers'])} |"
        for name, found in figures.items()
    ]
    return "\n".join(lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none at all"


if __name__ == "__main__":
    raise SystemExit(main())
