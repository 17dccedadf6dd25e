"""`zroact bench seed`: the documented workload replayed on real daemons with emulated engines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline_ver2.errors import StageError
from pipeline_ver2.job import Job
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.results import Results
from pipeline_ver2.supervisor import Supervisor
from serving.bench.bars import Bar
from serving.bench.daemons import emulated_config, temporary_folder
from serving.bench.ideal import Workload
from serving.bench.loop_lag import LoopLag, sampled_lag
from serving.bench.rows import ROWS, Row

DOCUMENTED_S = 27.91
DOCUMENTED_AB_S = 16.71
PACKAGES = ("aiohttp", "av", "fastapi", "numpy", "opencv-python-headless", "pillow", "uvicorn")

_HURRY = 50

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run of a row: the wall time, what the run says of its own timing, and the loop's lag if it was sampled."""

    wall_s: float
    stage2_began_s: float | None
    stage1_ended_s: float | None
    first_answer_s: float | None
    decode_busy_s: float
    loop_lag: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        figures = asdict(self)
        lag = figures.pop("loop_lag")
        rounded = {name: None if value is None else round(value, 4) for name, value in figures.items()}
        return {**rounded, **({"loop_lag": lag} if lag else {})}


@dataclass(frozen=True, slots=True)
class RowFigures:
    """All runs of a row."""

    row: Row
    ideal_s: float
    runs: tuple[RunFigures, ...]

    @property
    def wall_s(self) -> float:
        """The median."""
        return statistics.median(run.wall_s for run in self.runs)

    @property
    def over_ideal(self) -> float:
        """Wall time in units of the ideal."""
        return self.wall_s / self.ideal_s

    def better_than(self, other_s: float) -> float:
        """How much less time it takes than `other_s`, in per cent."""
        return 100 * (1 - self.wall_s / other_s)

    def as_dict(self, sequential_s: float | None) -> dict[str, Any]:
        """For the JSON report; without a sequential row beside it that comparison is null."""
        better = None if sequential_s is None else round(self.better_than(sequential_s), 2)
        return {
            "row": self.row.name,
            "title": self.row.title,
            "stage2_at_a_time": self.row.limit,
            "ideal_s": round(self.ideal_s, 4),
            "wall_s": round(self.wall_s, 4),
            "wall_over_ideal": round(self.over_ideal, 4),
            "better_than_documented_percent": round(self.better_than(DOCUMENTED_S), 2),
            "better_than_documented_ab_percent": round(self.better_than(DOCUMENTED_AB_S), 2),
            "better_than_sequential_percent": better,
            "runs": [run.as_dict() for run in self.runs],
        }


async def measure(clip: Path, rows: Sequence[Row], workload: Workload, repeat: int, tell: Tell) -> list[RowFigures]:
    """Run every row `repeat` times, the rows one after another in each round, so that all see the same machine.

    An unmeasured run with short service times comes first: what a process loads at first use is no row's work.

    Args:
        clip: The video; the workload must be its own.
        rows: What is measured.
        workload: How much there is to do, and the service times.
        repeat: Runs of each row.
        tell: Is told of progress.

    Raises:
        StageError: A daemon or a request failed, or a run did other work than the workload.
    """
    await _run_once(clip, ROWS["abc4"], workload.hurried(_HURRY))
    runs: dict[str, list[RunFigures]] = {row.name: [] for row in rows}
    for turn in range(1, repeat + 1):
        for row in rows:
            figures = await _run_once(clip, row, workload)
            runs[row.name].append(figures)
            tell(f"{row.title}: {figures.wall_s:.3f} s ({turn} of {repeat})")
    return [RowFigures(row, row.ideal_s(workload), tuple(runs[row.name])) for row in rows]


async def _run_once(clip: Path, row: Row, workload: Workload) -> RunFigures:
    """Daemons of its own with the row's limit; the clock runs from the call to the return, results.json written."""
    with temporary_folder() as folder:
        config, job = emulated_config(folder, workload, row.limit), Job(clip, folder / "out")
        async with Supervisor(config), sampled_lag() if row.samples_lag else nullcontext(LoopLag()) as lag:
            begun = time.perf_counter()
            results = await row.run(job, config, TimingRecorder())
            wall_s = time.perf_counter() - begun
    check_work(results, workload)
    timing = results.timing
    return RunFigures(
        wall_s=wall_s,
        stage2_began_s=timing.stage2_began_s,
        stage1_ended_s=timing.stage1_ended_s,
        first_answer_s=timing.first_answer_s,
        decode_busy_s=timing.busy_s["decode"],
        loop_lag=lag.as_dict(),
    )


def check_work(results: Results, workload: Workload) -> None:
    """See that a run did the workload's work, on emulated engines.

    Raises:
        StageError: It did not.
    """
    counts = results.counts
    done = (counts.frames_grid, counts.keyframes, counts.batches, counts.slots, counts.ok)
    wanted = (workload.frames, workload.keyframes, workload.batches, workload.slots, workload.slots)
    if done != wanted:
        raise StageError(f"frames, keyframes, batches, slots, answers were {done}, not {wanted}")
    engines = {stage: told["engine"] for stage, told in results.models.items()}
    if set(engines.values()) != {"emulated"}:
        raise StageError(f"the engines were {engines}, not emulated")


def bars_of(figures: Sequence[RowFigures]) -> list[Bar]:
    """The bars of the rows that were measured."""
    measured = {figure.row.name: figure for figure in figures}
    bars: list[Bar] = []
    for limit in (1, 2, 3, 4):
        if (figure := measured.get(f"abc{limit}")) is not None:
            name = f"A + B + C at {limit}: wall / ideal"
            bars += [Bar(name, figure.over_ideal, "<=", 1.06), Bar.hoped_for(name, figure.over_ideal, "<=", 1.03)]
    if (sequential := measured.get("sequential")) is not None:
        bars.append(Bar("sequential: wall, s", sequential.wall_s, ">=", 28.6))
    if (at_two := measured.get("abc2")) is not None:
        name = f"A + B + C at 2: per cent better than {DOCUMENTED_S} s"
        bars.append(Bar(name, at_two.better_than(DOCUMENTED_S), ">=", 46))
    return bars


def build_report(
    machine: dict[str, Any], clip: Path, workload: Workload, figures: Sequence[RowFigures], bars: Sequence[Bar]
) -> dict[str, Any]:
    """The JSON report."""
    sequential_s = next((figure.wall_s for figure in figures if figure.row.name == "sequential"), None)
    return {
        "bench": "seed",
        "engines": {"stage1": "emulated", "stage2": "emulated"},
        "machine": machine,
        "workload": _workload_dict(clip, workload),
        "rows": [figure.as_dict(sequential_s) for figure in figures],
        "bars": [bar.as_dict() for bar in bars],
    }


def _workload_dict(clip: Path, workload: Workload) -> dict[str, Any]:
    return {
        "clip": clip.name,
        "frames": workload.frames,
        "keyframes": workload.keyframes,
        "batches": workload.batches,
        "slots": workload.slots,
        "stage1_service_s": workload.stage1_s,
        "stage2_service_s": workload.stage2_s,
        "documented_s": {"as found": DOCUMENTED_S, "A + B(2)": DOCUMENTED_AB_S},
    }
