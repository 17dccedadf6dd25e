"""`zroact bench`: the shipped benchmarks.

Exit codes: 0 every bar that decides is reached, 1 one is missed or a run failed, 2 usage.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from pipeline_ver2.command import EXIT_FATAL, EXIT_INTERRUPTED, LOG_FORMAT, exit_codes
from serving.bench import demo as demo_bench
from serving.bench import jobs as jobs_bench
from serving.bench import scheduler as scheduler_bench
from serving.bench import seed as seed_bench
from serving.bench.bars import Bar, passed
from serving.bench.daemons import CLIP, demo_config, jobs_config, stage1_config, stage2_config, temporary_folder
from serving.bench.ideal import Workload
from serving.bench.machine import describe_machine
from serving.bench.rows import ROWS, choose_rows
from serving.bench.tables import bars_table, demo_table, gpu_table, jobs_table, seed_table, stage1_table, stage2_table

T = TypeVar("T")

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Shipped benchmarks: ratios of runs side by side, with bars.",
)

_Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")]


@app.command()
def seed(
    rows: Annotated[str | None, typer.Option(help=f"Comma-separated; by default {','.join(ROWS)}.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each row; the median counts.")] = 1,
    *,
    as_json: _Json = False,
) -> None:
    """Replay the documented workload on real daemons with emulated engines: each row against its ideal."""
    with _measuring():
        chosen, workload = choose_rows(rows), Workload()
        machine = describe_machine(seed_bench.PACKAGES)
        figures = asyncio.run(_until_signalled(seed_bench.measure(CLIP, chosen, workload, repeat, _tell)))
    bars = seed_bench.bars_of(figures)
    report = seed_bench.build_report(machine, CLIP, workload, figures, bars)
    conclude(report, [seed_table(report), bars_table(bars)], bars, as_json=as_json)


@app.command()
def demo(
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs after the warm-up.")] = 5,
    *,
    as_json: _Json = False,
) -> None:
    """Run the orchestrator against the sequential baseline with the demo models, in alternating pairs."""
    with _measuring():
        machine = describe_machine([*seed_bench.PACKAGES, *demo_bench.MODEL_PACKAGES])
        with temporary_folder() as folder:
            measuring = demo_bench.measure(CLIP, demo_config(folder), folder, pairs, _tell)
            figures = asyncio.run(_until_signalled(measuring))
    bars = demo_bench.bars_of(figures.pairs)
    report = demo_bench.build_report(machine, CLIP, figures, bars)
    conclude(report, [demo_table(report), bars_table(bars)], bars, as_json=as_json)


@app.command()
def stage1(
    pairs: Annotated[int, typer.Option(min=1, help="Rounds in which everything is measured once.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each server is loaded in a round.")] = 4,
    soak_s: Annotated[float, typer.Option(min=0, help="How long many clients load the daemon; 0: not.")] = 60,
    *,
    as_json: _Json = False,
) -> None:
    """Load the detector daemon over HTTP, in turns with its session in a bare loop and with LitServe and mosec."""
    from serving.bench import stage1 as bench  # needs the engine
    from serving.bench import stage1_report
    from serving.bench.peers.stage1_model import thread_count

    with _measuring():
        machine = describe_machine(stage1_report.PACKAGES)
        with temporary_folder() as folder:
            config, plan = stage1_config(folder), bench.Plan(pairs, seconds, soak_s)
            figures = asyncio.run(_until_signalled(bench.measure(CLIP, config, folder, plan, _tell)))
    bars = stage1_report.bars_of(figures)
    report = stage1_report.build_report(machine, CLIP, thread_count(config.stage1), figures, bars)
    conclude(report, [stage1_table(report), bars_table(bars)], bars, as_json=as_json)


@app.command()
def stage2(
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs at each concurrency.")] = 5,
    requests: Annotated[int, typer.Option(min=1, help="Requests in a lap of a run.")] = 26,
    vllm_python: Annotated[
        Path | None, typer.Option(help="Interpreter that has vLLM; default .venv-vllm/bin/python, else this one.")
    ] = None,
    *,
    as_json: _Json = False,
) -> None:
    """Load the Stage 2 daemon and the vLLM behind it in turns, with 1, 2, 4 and 8 clients."""
    from serving.bench import stage2 as bench  # needs the extras' packages

    with _measuring():
        machine = describe_machine(bench.PACKAGES)
        with temporary_folder() as folder:
            config = stage2_config(folder, bench.find_vllm(vllm_python))
            figures = asyncio.run(_until_signalled(bench.measure(config, pairs, requests, _tell)))
    bars = bench.bars_of(figures)
    report = bench.build_report(machine, requests, figures, bars)
    conclude(report, [stage2_table(report), bars_table(bars)], bars, as_json=as_json)


@app.command()
def scheduler(*, as_json: _Json = False) -> None:
    """Simulate hours of the scheduler: overload with deadlines, and engines that the adaptive limit has to find out."""
    with _measuring():
        machine = describe_machine([])
        hours, limits = scheduler_bench.measure(_tell)
    bars = scheduler_bench.bars_of(hours, limits)
    report = scheduler_bench.build_report(machine, hours, limits, bars)
    conclude(report, [bars_table(bars)], bars, as_json=as_json)


@app.command()
def gpu(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds at each concurrency.")] = 10,
    *,
    as_json: _Json = False,
) -> None:
    """Run the transformers engine on CUDA with random weights of Qwen3.5-2B's size: latency and memory."""
    from serving.bench import gpu as bench  # needs the engine

    with _measuring():
        bench.check_gpu()
        machine = describe_machine(bench.PACKAGES)
        with temporary_folder() as folder:
            bench.write_random_model(folder / "model", bench.TEXT_2B, bench.VISION_2B, "cuda")
            figures = asyncio.run(_until_signalled(bench.measure(folder / "model", rounds, _tell)))
    bars = bench.bars_of(figures)
    report = bench.build_report(machine, rounds, figures, bars)
    conclude(report, [gpu_table(report), bars_table(bars)], bars, as_json=as_json)


@app.command()
def jobs(
    uploads: Annotated[int, typer.Option(min=1, help="Clips that are uploaded.")] = 200,
    clients: Annotated[int, typer.Option(min=1, help="Clients, each with one job at a time.")] = 20,
    jobs_at_once: Annotated[int, typer.Option(min=1, help="Jobs that run at a time.")] = 3,
    max_queue: Annotated[int, typer.Option(min=1, help="Jobs that may wait; with fewer places, clients wait.")] = 12,
    *,
    as_json: _Json = False,
) -> None:
    """Upload small clips to the job API from many clients, emulated engines behind it: latency, event loop, memory."""
    with _measuring():
        machine = describe_machine(jobs_bench.PACKAGES)
        with temporary_folder() as folder:
            config, load = jobs_config(folder, jobs_at_once, max_queue), jobs_bench.Load(uploads, clients)
            figures = asyncio.run(_until_signalled(jobs_bench.measure(config, folder, load, _tell)))
    bars = jobs_bench.bars_of(figures)
    report = jobs_bench.build_report(machine, config, figures, bars)
    conclude(report, [jobs_table(report), bars_table(bars)], bars, as_json=as_json)


@app.command()
def files(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long the 1080p file is.")] = 30,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which extraction is measured.")] = 7,
    *,
    as_json: _Json = False,
) -> None:
    """Run a long 1080p file with emulated engines: the orchestrator's memory; frame extraction against a bare loop."""
    from serving.bench import files as bench
    from serving.bench.daemons import emulated_config
    from serving.bench.tables import files_table

    with _measuring():
        machine, plan = describe_machine(bench.PACKAGES), bench.Plan(minutes, rounds)
        with temporary_folder() as folder:
            config = emulated_config(folder, Workload().hurried(bench.HURRY), 2)
            figures = asyncio.run(_until_signalled(bench.measure(config, folder, plan, _tell)))
    bars = bench.bars_of(figures)
    report = bench.build_report(machine, plan, figures, bars)
    conclude(report, [files_table(report), bars_table(bars)], bars, as_json=as_json)


@app.command()
def live(
    seconds: Annotated[float, typer.Option(min=5, help="How long the cameras are followed.")] = 120,
    *,
    as_json: _Json = False,
) -> None:
    """Follow four cameras that ask for 1.5 times what Stage 2 can do by their deadlines; the engines are emulated."""
    from serving.bench import live as bench
    from serving.bench.tables import live_table

    with _measuring():
        machine = describe_machine(bench.PACKAGES)
        with temporary_folder() as folder:
            figures = asyncio.run(_until_signalled(bench.measure(folder, seconds, _tell)))
    bars = bench.bars_of(figures)
    report = bench.build_report(machine, figures, bars)
    conclude(report, [live_table(report), bars_table(bars)], bars, as_json=as_json)


def conclude(report: dict[str, Any], tables: Sequence[Table], bars: Sequence[Bar], *, as_json: bool) -> None:
    """Show a report, and exit with 1 if a bar that decides is missed."""
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        console = Console()
        for table in tables:
            console.print(table)
    if not passed(bars):
        raise typer.Exit(EXIT_FATAL)


@contextmanager
def _measuring() -> Iterator[None]:
    """Only warnings are logged; errors and Ctrl-C end the command with the documented exit codes."""
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT)
    with exit_codes():
        try:
            yield
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            typer.echo("interrupted; a benchmark keeps nothing", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from error


async def _until_signalled(measuring: Coroutine[Any, Any, T]) -> T:
    """Measure; SIGTERM cancels as Ctrl-C does, so that nothing is left behind."""
    task = asyncio.ensure_future(measuring)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _tell(progress: str) -> None:
    typer.echo(progress, err=True)
