"""Measures the embedded models over HTTP: `python -m serving.demo.evaluate [--only detector] [--json]`.

Held-out clips and slots of two disjoint seed sets go to the daemons by the orchestrator's own clients; the demo clip
and clips without people are run as videos. Daemons are started on free loopback ports and stopped again. With `--keep
FILE` an interrupted evaluation goes on with the first part that was not finished.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline_ver2.config import Config
from pipeline_ver2.stage_probe import StageName
from serving.bench.bars import Bar, passed
from serving.bench.daemons import temporary_folder
from serving.demo import confusion
from serving.demo.evaluate_answerer import DETECTED, evaluate_answerer
from serving.demo.evaluate_clips import evaluate_clips
from serving.demo.evaluate_detector import evaluate_detector
from serving.demo.held_out import SEED_SETS
from serving.demo.kept import Kept, identity
from serving.demo.measuring import Tell, add_daemon_options, conclude, config_of, stages_up, tell
from serving.workers.stage1_model import EMBEDDED_MODEL
from serving.workers.stage2_engine import DEMO_MODEL_FOLDER

PARTS = ("detector", "answerer", "clips")

# The picture shows the first, `zroact run` the second.
_JSON_ONLY = frozenset({"given for right", "answers"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a bar is missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    parser.add_argument("--clips", type=int, default=600, help="clips for the detector, of each of the two seed sets")
    parser.add_argument("--slots", type=int, default=600, help="slots for the answerer, of each of the two seed sets")
    parser.add_argument("--picture", type=Path, help="draw the answerer's confusions into this file, such as c.svg")
    parser.add_argument("--keep", type=Path, help="keep finished parts in this file, and go on from it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_daemon_options(parser)
    options = parser.parse_args(arguments)
    with temporary_folder() as folder:
        report, bars = conclude(evaluate(config_of(options, folder), folder, options, tell))
    report["bars"] = [bar.as_dict() for bar in bars]
    sys.stdout.write((json.dumps(report) if options.json else text(report)) + "\n")
    return int(not passed(bars))


async def evaluate(
    config: Config, folder: Path, options: argparse.Namespace, tell: Tell
) -> tuple[dict[str, Any], list[Bar]]:
    """The figures of each part, and all bars; stages that are needed and not up are started.

    Raises:
        ZroactError: A stage or a file cannot be used.
    """
    parts = PARTS if options.only is None else (options.only,)
    kept = await asyncio.to_thread(lambda: Kept(options.keep, _identity(config, options)))
    missing = [part for part in parts if kept.get(part) is None]
    async with stages_up(config, _stages(missing)):
        for part in missing:
            kept.put(part, *await _measure(part, config, folder, options, tell))
    done = {part: found for part in parts if (found := kept.get(part)) is not None}
    report, bars = (
        {part: figures for part, (figures, _) in done.items()},
        [bar for _, each in done.values() for bar in each],
    )
    if options.picture is not None and "answerer" in report:
        sets = {label: report["answerer"][DETECTED][label]["given for right"] for label in SEED_SETS}
        await asyncio.to_thread(confusion.draw, sets, f"The answerer with {DETECTED}", options.picture)
    return report, bars


async def _measure(
    part: str, config: Config, folder: Path, options: argparse.Namespace, tell: Tell
) -> tuple[dict[str, Any], list[Bar]]:
    if part == "detector":
        return await evaluate_detector(config, options.clips, tell)
    if part == "answerer":
        return await evaluate_answerer(config, options.slots, tell)
    return await evaluate_clips(config, folder, tell)


def _stages(parts: Sequence[str]) -> tuple[StageName, ...]:
    """What parts need: every one asks the detector."""
    if not parts:
        return ()
    return ("stage1",) if set(parts) == {"detector"} else ("stage1", "stage2")


def _identity(config: Config, options: argparse.Namespace) -> str:
    model = DEMO_MODEL_FOLDER if config.stage2.model is None else Path(config.stage2.model)
    # What is missing is for the daemons to refuse.
    files = [path for path in (config.stage1.model_path or EMBEDDED_MODEL, *model.glob("*")) if path.is_file()]
    settings = {"clips": options.clips, "slots": options.slots, "urls": [config.stage1.url, config.stage2.url]}
    return identity(files, settings)


def text(report: Mapping[str, Any]) -> str:
    """A Markdown table of what was measured on both seed sets, other figures line by line, then the bars."""
    rows = [row for part in ("detector", "answerer") for row in _rows(report.get(part, {}), part)]
    head = ["| figure | A | B |", "|---|---|---|"] if rows else []
    others = list(_lines(report.get("clips", {}), "clips"))
    bars = [
        f"{'ok  ' if bar['ok'] else 'MISS'} {bar['name']}: {bar['value']:.3f} {bar['op']} {bar['target']:g}"
        for bar in report["bars"]
    ]
    return "\n".join((*head, *rows, *others, *bars))


def _rows(figures: Mapping[str, Any], name: str) -> Iterator[str]:
    """Rows of the table: every figure that both seed sets have, named by its path."""
    for key, inner in figures.items():
        if isinstance(inner, Mapping) and set(SEED_SETS) <= set(inner):
            first, second = (dict(_leaves(inner[label], f"{name}, {key}")) for label in SEED_SETS)
            yield from (f"| {path} | {_shown(first[path])} | {_shown(second.get(path))} |" for path in first)


def _lines(value: object, name: str) -> Iterator[str]:
    return (f"{path}: {_shown(leaf)}" for path, leaf in _leaves(value, name))


def _leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _JSON_ONLY:
                yield from _leaves(inner, f"{name}, {key}")
    else:
        yield name, value


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-" if value is None else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
