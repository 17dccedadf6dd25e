"""Measures the embedded models on held-out scenes: `python -m serving.demo.evaluate [--json]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.demo.evaluate_detector import evaluate_detector
from serving.workers.stage1_model import EMBEDDED_MODEL


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a model is below the floor it must not be shipped under, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=600, help="clips of each of the two seed sets")
    parser.add_argument("--detector", type=Path, default=EMBEDDED_MODEL, help="the detector's ONNX file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    figures, bars = evaluate_detector(options.clips, options.detector)
    report = {"detector": figures, "bars": [bar.described() for bar in bars]}
    sys.stdout.write((json.dumps(report) if options.json else _text(report)) + "\n")
    return int(any(bar.floor and not bar.ok for bar in bars))


def _text(report: Mapping[str, Any]) -> str:
    lines: list[str] = []
    _append(lines, report["detector"], "detector")
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
