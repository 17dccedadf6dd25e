"""`zroact bench demo`: the orchestrator against the sequential baseline, both with the embedded demo models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.main import run_baseline
from pipeline_ver2.config import Config
from pipeline_ver2.errors import StageError
from pipeline_ver2.job import Job
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import Results
from pipeline_ver2.supervisor import Supervisor
from serving.bench.bars import Bar

MODEL_PACKAGES = ("onnxruntime", "torch", "transformers")

Side = Literal["orchestrator", "baseline"]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """Wall times of both sides, run one right after the other; `first` is the side that began."""

    first: Side
    orchestrator_s: float
    baseline_s: float

    @property
    def ratio(self) -> float:
        """Orchestrator / baseline."""
        return self.orchestrator_s / self.baseline_s

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "first": self.first,
            "orchestrator_s": round(self.orchestrator_s, 4),
            "baseline_s": round(self.baseline_s, 4),
            "ratio": round(self.ratio, 4),
        }


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """All pairs, and what the stages say of their models."""

    pairs: tuple[Pair, ...]
    engines: dict[str, str]
    models: dict[str, str]

    @property
    def median_ratio(self) -> float:
        """Median of the pairs' ratios."""
        return statistics.median(pair.ratio for pair in self.pairs)


async def measure(clip: Path, config: Config, folder: Path, pairs: int, tell: Tell) -> DemoFigures:
    """A warm-up pair, then `pairs` pairs with the order swapped each time, all on the same daemons.

    Args:
        clip: The video.
        config: Where the daemons are started, and their engines.
        folder: For the results; a media root, since the baseline's frames lie there.
        pairs: How many pairs are measured.
        tell: Is told of progress.

    Raises:
        StageError: A daemon failed, or a run left slots unanswered.
    """
    async with Supervisor(config):
        _, warm = await _run_pair("baseline", clip, config, folder / "warm-up")
        tell("warm-up done")
        measured: list[Pair] = []
        for number in range(1, pairs + 1):
            first: Side = "orchestrator" if number % 2 else "baseline"
            pair, _ = await _run_pair(first, clip, config, folder / f"pair-{number}")
            measured.append(pair)
            tell(f"pair {number} of {pairs}: {pair.orchestrator_s:.2f} s / {pair.baseline_s:.2f} s")
    told = warm.models
    return DemoFigures(
        tuple(measured),
        engines={stage: told[stage]["engine"] for stage in told},
        models={stage: told[stage]["name"] for stage in told},
    )


async def _run_pair(first: Side, clip: Path, config: Config, folder: Path) -> tuple[Pair, Results]:
    """Both sides, and the results of the second."""
    second: Side = "baseline" if first == "orchestrator" else "orchestrator"
    walls: dict[Side, float] = {}
    for side in (first, second):
        begun = time.perf_counter()
        if side == "orchestrator":
            results = await run_pipeline(Job(clip, folder / side), config)
        else:
            results = await run_baseline(clip, folder / side, config, frames="jpeg")
        walls[side] = time.perf_counter() - begun
        if results.counts.ok != results.counts.slots:
            raise StageError(f"{side}: {results.counts.ok} of {results.counts.slots} slots were answered")
    return Pair(first, walls["orchestrator"], walls["baseline"]), results


def bars_of(pairs: Sequence[Pair]) -> list[Bar]:
    """The bars."""
    ratios = [pair.ratio for pair in pairs]
    return [
        Bar("orchestrator / baseline: median of the pairs", statistics.median(ratios), "<=", 0.85),
        Bar("orchestrator / baseline: worst pair", max(ratios), "<", 1),
    ]


def build_report(machine: dict[str, Any], clip: Path, figures: DemoFigures, bars: Sequence[Bar]) -> dict[str, Any]:
    """The JSON report."""
    return {
        "bench": "demo",
        "engines": figures.engines,
        "models": figures.models,
        "machine": machine,
        "workload": {"clip": clip.name, "warm_up_pairs": 1, "pairs": len(figures.pairs)},
        "median_ratio": round(figures.median_ratio, 4),
        "pairs": [pair.as_dict() for pair in figures.pairs],
        "bars": [bar.as_dict() for bar in bars],
    }
