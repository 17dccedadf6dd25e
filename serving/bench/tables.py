"""Reports as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from serving.bench.bars import Bar


def seed_table(report: Mapping[str, Any]) -> Table:
    """The rows of the seed benchmark, one line each."""
    documented = report["workload"]["documented_s"]
    table = Table(title=f"The documented workload, {_engines(report)}", caption=_machine(report))
    headings = ["row", "ideal s", "wall s", "wall / ideal", *(f"vs {value} s" for value in documented.values())]
    for heading in (*headings, "vs sequential", "loop lag p50 / p99 / max"):
        table.add_column(heading, justify="left" if heading == "row" else "right")
    for row in report["rows"]:
        table.add_row(
            row["title"],
            f"{row['ideal_s']:.3f}",
            f"{row['wall_s']:.3f}",
            f"{row['wall_over_ideal']:.3f}",
            _percent(row["better_than_documented_percent"]),
            _percent(row["better_than_documented_ab_percent"]),
            _percent(row["better_than_sequential_percent"]),
            _lag(row["runs"]),
        )
    return table


def demo_table(report: Mapping[str, Any]) -> Table:
    """The pairs of the demo benchmark, one line each."""
    table = Table(title=f"The demo clip, {_engines(report)}", caption=_machine(report))
    for heading in ("pair", "began", "orchestrator s", "baseline s", "ratio"):
        table.add_column(heading, justify="left" if heading == "began" else "right")
    for number, pair in enumerate(report["pairs"], start=1):
        times = (f"{pair[name]:.2f}" for name in ("orchestrator_s", "baseline_s"))
        table.add_row(str(number), pair["first"], *times, f"{pair['ratio']:.3f}")
    table.add_row("median", "", "", "", f"{report['median_ratio']:.3f}")
    return table


def stage1_table(report: Mapping[str, Any]) -> Table:
    """The servers of the Stage 1 benchmark, one line each for requests of several clips and of one."""
    clients = report["workload"]["clients"]
    table = Table(title=f"Stage 1 with {clients} clients, {_engines(report)}", caption=_machine(report))
    for heading in ("clips a request", "server", "clips/s", "daemon / this", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for part in (report["batches"], report["singles"]):
        for name, server in part["servers"].items():
            times = (f"{server[name]:.0f}" for name in ("p50_ms", "p99_ms"))
            ratio = f"{server['daemon_ratio']:.2f}"
            table.add_row(str(part["clips_per_request"]), name, f"{server['clips_per_s']:.2f}", ratio, *times)
    return table


def stage2_table(report: Mapping[str, Any]) -> Table:
    """The concurrencies of the Stage 2 benchmark, one line each."""
    limit = report["workload"]["limit"]
    table = Table(title=f"Stage 2, limit {limit}, {_engines(report)}", caption=_machine(report))
    for heading in ("clients", "daemon /s", "p50 ms", "p99 ms", "direct /s", "p50 ms", "p99 ms", "ratio", "added ms"):
        table.add_column(heading, justify="right")
    for row in report["rows"]:
        figures = [f"{row[side][name]:.4g}" for side in ("daemon", "direct") for name in ("per_s", "p50_ms", "p99_ms")]
        table.add_row(str(row["concurrency"]), *figures, f"{row['ratio']:.3f}", f"{row['added_p50_ms']:+.2f}")
    return table


def jobs_table(report: Mapping[str, Any]) -> Table:
    """What the clients of the jobs benchmark saw."""
    load, jobs = report["workload"], report["jobs"]
    title = f"{load['uploads']} uploads of {load['clients']} clients, {load['jobs_at_once']} jobs at a time"
    table = Table(title=f"{title}, {_engines(report)}", caption=_machine(report))
    for heading in ("", "p50", "p99", "max"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in (
        ("POST /jobs, ms", jobs["post_ms"]),
        ("GET /jobs/{id}, ms", jobs["get_job_ms"]),
        ("event loop lag, ms", {name.removesuffix("_ms"): value for name, value in jobs["loop_lag"].items()}),
        ("upload to end, s", jobs["job_s"]),
    ):
        table.add_row(name, *(f"{figures[name]:.1f}" for name in ("p50", "p99", "max")))
    table.add_row("all, s", f"{jobs['wall_s']:.1f}")
    table.add_row("uploads told to wait", str(jobs["refused_429"]))
    return table


def files_table(report: Mapping[str, Any]) -> Table:
    """The rounds of the files benchmark, and the long run."""
    run, seconds = report["run"], report["workload"]["seconds"]
    table = Table(title=f"{seconds / 60:.1f} minutes of 1080p, {_engines(report)}", caption=_machine(report))
    for heading in ("round", "extraction /s", "bare loop /s", "FFmpeg scales /s", "ratio"):
        table.add_column(heading, justify="left" if heading == "round" else "right")
    for number, each in enumerate(report["extraction"]["rounds"], start=1):
        speeds = (f"{each[name]:.1f}" for name in ("extraction_fps", "bare_fps", "scaled_fps"))
        table.add_row(str(number), *speeds, f"{each['ratio']:.3f}")
    table.add_row("the run, s", f"{run['wall_s']:.1f}")
    table.add_row("times real time", f"{run['times_real_time']:.2f}")
    table.add_row("memory, MiB", f"{run['memory_most_mb']:.0f}")
    return table


def live_table(report: Mapping[str, Any]) -> Table:
    """The streams of the live benchmark, one line each."""
    deadline_s = report["workload"]["deadline_s"]
    table = Table(title=f"Live streams, deadline {deadline_s:g} s, {_engines(report)}", caption=_machine(report))
    counted = ("frames", "keyframes", "arrived", "ok", "failed", "shed", "dropped")
    for heading in ("stream", *counted, "frame to answer p50 / p90 / p99"):
        table.add_column(heading, justify="left" if heading == "stream" else "right")
    for name, stream in report["live"]["streams"].items():
        times = " / ".join(f"{stream['latency_s'].get(share, float('nan')):.2f}" for share in ("p50", "p90", "p99"))
        table.add_row(name, *(str(stream[each]) for each in counted), f"{times} s")
    return table


def gpu_table(report: Mapping[str, Any]) -> Table:
    """The concurrencies of the GPU benchmark, one line each."""
    table = Table(title=f"{report['machine']['gpu']}, {report['models']['stage2']}", caption=_machine(report))
    columns = {"concurrency": "clients", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "tokens_per_s": "tokens/s"}
    columns["peak_gb"] = "peak GB"
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for row in report["rows"]:
        table.add_row(*(str(row[name]) for name in columns))
    return table


def bars_table(bars: Sequence[Bar]) -> Table:
    """The bars, one line each."""
    table = Table(title="Bars")
    for heading in ("bar", "value", "must be", ""):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for bar in bars:
        table.add_row(bar.name, f"{bar.value:.3f}", f"{bar.op} {bar.target:g}", "ok" if bar.ok else "missed")
    return table


def _engines(report: Mapping[str, Any]) -> str:
    told = (f"{stage} {engine}" for stage, engine in report["engines"].items())
    return f"engines: {', '.join(told)}"


def _machine(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    loads = " ".join(str(load) for load in machine["load_average"])
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, load before {loads}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} %"


def _lag(runs: Sequence[Mapping[str, Any]]) -> str:
    """The lag of the last run, if it was sampled."""
    lag = runs[-1].get("loop_lag")
    return "" if lag is None else f"{lag['p50_ms']:.1f} / {lag['p99_ms']:.1f} / {lag['max_ms']:.1f} ms"
