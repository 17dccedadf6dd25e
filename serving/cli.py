"""`zroact`: the daemons, the pipeline and the benchmarks from one command.

Exit codes: 0 done, 1 fatal, 2 usage or configuration, 3 a run with failed parts, 130 interrupted.
What a subcommand needs is imported when it is called: a daemon starts without the orchestrator, `--help` without both.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from pipeline_ver2.config import Config, load_config

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Two-stage video understanding: a detector looks first, a vision-language model looks again.",
)

# The subcommand reads its own arguments, `--help` included, as it does when it is called by itself.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _tell_version(wanted: bool) -> None:  # noqa: FBT001 - the signature of an option's callback
    if wanted:
        typer.echo(f"zroact-stage2 {version('zroact-stage2')}")
        raise typer.Exit


@app.callback()
def zroact(
    *,
    told: Annotated[bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say it.")] = False,
) -> None:
    """Options of every subcommand."""


@app.command()
def up(
    config: Annotated[Path | None, typer.Option(help="Configuration file; default ./config.json.")] = None,
) -> None:
    """Run both daemons and the job API until Ctrl-C; daemons that die start again. A second Ctrl-C kills them."""
    from pipeline_ver2.command import LOG_FORMAT, exit_codes

    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    with exit_codes():
        asyncio.run(_until_stopped(_keep_up(load_config(config))))


@app.command()
def worker(
    config: Annotated[Path | None, typer.Option(help="Configuration file; default ./config.json.")] = None,
    adopt: Annotated[list[str] | None, typer.Option(help="Take over the jobs of a dead executor.")] = None,
) -> None:
    """Run jobs of the queue without the API, with stages that are up, until Ctrl-C."""
    from pipeline_ver2.command import LOG_FORMAT, exit_codes

    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    with exit_codes():
        asyncio.run(_until_stopped(_work(load_config(config), adopt or [])))


@app.command(context_settings=_PASS_ON, add_help_option=False)
def stage1(context: typer.Context) -> None:
    """The detector daemon, in this process."""
    from serving.workers import stage1_server

    sys.exit(stage1_server.main(context.args))


@app.command(context_settings=_PASS_ON, add_help_option=False)
def stage2(context: typer.Context) -> None:
    """The vision-language daemon, in this process."""
    from serving.workers import stage2_server

    sys.exit(stage2_server.main(context.args))


@app.command(context_settings=_PASS_ON, add_help_option=False)
def run(context: typer.Context) -> None:
    """Run a video through both stages."""
    from pipeline_ver2 import command

    command.app(context.args, prog_name="zroact run")


@app.command(context_settings=_PASS_ON, add_help_option=False)
def streams(context: typer.Context) -> None:
    """Follow several live streams at once."""
    from pipeline_ver2 import streams_command

    streams_command.app(context.args, prog_name="zroact streams")


@app.command()
def probe(
    file: Annotated[Path, typer.Argument(help="The video.")],
    config: Annotated[Path | None, typer.Option(help="Configuration file; default ./config.json.")] = None,
    *,
    full: Annotated[bool, typer.Option("--full", help="Decode all of it, not only the first seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """What is in a video file, what is odd about it, and what the pipeline makes of it.

    Exit code 1 if it cannot be used.
    """
    from pipeline_ver2.command import EXIT_FATAL, exit_codes
    from pipeline_ver2.probe_report import probe_file

    with exit_codes():
        report = probe_file(file, load_config(config), full=full)
    typer.echo(report.model_dump_json(indent=1) if as_json else report.as_text())
    if not report.usable:
        raise typer.Exit(EXIT_FATAL)


@app.command("plan-vram")
def plan_vram(
    total_gb: Annotated[float | None, typer.Option(min=0.1, help="The card's memory.")] = None,
    reserved_gb: Annotated[float | None, typer.Option(min=0, help="What others hold of it.")] = None,
    stage1_gb: Annotated[float, typer.Option(min=0, help="What Stage 1 will take; 0 if it runs already.")] = 1,
    weights_gb: Annotated[float, typer.Option(min=0, help="Stage 2's weights.")] = 5,
    per_request_gb: Annotated[str, typer.Option(metavar="LOW-HIGH", help="What each request takes.")] = "1-2",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """How many Stage 2 requests at once fit on the GPU.

    Without --total-gb and --reserved-gb the GPU is read; without a GPU the documented card stands in, an RTX A6000 of
    47.5 GB with 26 GB taken by others. Exit code 1 if nothing fits.
    """
    from pipeline_ver2.command import EXIT_FATAL, exit_codes
    from serving.workers.vram_check import read_card
    from serving.workers.vram_plan import Need, Plan, choose_card, parse_span

    with exit_codes():
        need = Need(weights_gb, *parse_span(per_request_gb, "--per-request-gb"))
        plan = Plan(choose_card(total_gb, reserved_gb, read_card), stage1_gb, need)
    typer.echo(json.dumps(plan.as_dict(), indent=1) if as_json else plan.as_text())
    if not plan.recommended:
        raise typer.Exit(EXIT_FATAL)


@app.command("export-yowov3", context_settings=_PASS_ON, add_help_option=False)
def export_yowov3(context: typer.Context) -> None:
    """Write your own YOWOv3 as the ONNX file that Stage 1 runs."""
    try:
        from serving.yowov3 import command
    except ModuleNotFoundError as error:
        typer.echo(f"error: export-yowov3 needs {error.name}; install the extras cpu and bench", err=True)
        raise typer.Exit(2) from error

    command.app(context.args, prog_name="zroact export-yowov3")


@app.command(context_settings=_PASS_ON, add_help_option=False)
def bench(context: typer.Context) -> None:
    """The shipped benchmarks."""
    from serving.bench import command

    command.app(context.args, prog_name="zroact bench")


async def _until_stopped(work: Coroutine[None, None, None]) -> None:
    """Do the work; the first signal stops it in order, a second one at once."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def _keep_up(config: Config) -> None:
    from pipeline_ver2.supervisor import Supervisor
    from serving.server import job_server, reserved, until_broken

    with reserved(config) as (listener, url):
        async with Supervisor(config) as supervisor, job_server(config, listener) as serving:
            stages = f"Stage 1 at {config.stage1.base_url}, Stage 2 at {config.stage2.base_url}"
            typer.echo(f"ready: {stages}, jobs at {url}")
            typer.echo("Ctrl-C stops what was started here")
            ends = [asyncio.ensure_future(end) for end in (supervisor.wait_failed(), until_broken(serving))]
            try:
                done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in done:
                    end.result()
            finally:
                for end in ends:
                    end.cancel()


async def _work(config: Config, adopted: Sequence[str]) -> None:
    from serving.server import engine

    async with engine(config, adopted):
        typer.echo(f"ready: jobs of {config.paths.data_dir} run here; Ctrl-C stops")
        await asyncio.Event().wait()


def main() -> None:
    """Entry point of the script."""
    app()
