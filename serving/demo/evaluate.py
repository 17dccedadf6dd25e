"""Measures the embedded models on held-out scenes: `python -m serving.demo.evaluate [--only detector] [--json]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from serving.demo.bars import Bar
from serving.demo.evaluate_detector import evaluate_detector


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a model is below the floor it must not be shipped under, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("detector", "answerer"), help="measure one of the models")
    parser.add_argument("--clips", type=int, default=600, help="clips for the detector, of each of the two seed sets")
    parser.add_argument("--slots", type=int, default=600, help="slots for the answerer, of each of the two seed sets")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {}
    bars: list[Bar] = []
    if options.only != "answerer":
        report["detector"], found = evaluate_detector(options.clips)
        bars += found
    if options.only != "detector":
        report["answerer"], found = _evaluate_answerer(options.slots)
        bars += found
    report["bars"] = [bar.described() for bar in bars]
    sys.stdout.write((json.dumps(report) if options.json else _text(report)) + "\n")
    return int(any(bar.floor and not bar.ok for bar in bars))


def _evaluate_answerer(slots: int) -> tuple[dict[str, Any], list[Bar]]:
    # torch and transformers take seconds to load, and the detector does without them.
    import torch

    from serving.demo.evaluate_answerer import evaluate_answerer

    torch.set_num_threads(1)
    return evaluate_answerer(slots)


def _text(report: Mapping[str, Any]) -> str:
    """A line for each figure, then one for each bar."""
    lines: list[str] = []
    for model in ("detector", "answerer"):
        _append(lines, report.get(model, {}), model)
    lines += [
        f"{'ok  ' if bar['ok'] else 'MISS'} {bar['name']}: {bar['value']:.3f} {bar['op']} {bar['target']:g}"
        for bar in report["bars"]
    ]
    return "\n".join(lines)


def _append(lines: list[str], value: object, name: str) -> None:
    """One line for each figure, named by its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _append(lines, inner, f"{name}, {key}")
    else:
        lines.append(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    raise SystemExit(main())
