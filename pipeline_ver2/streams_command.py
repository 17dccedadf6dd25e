"""`zroact streams FILE`: several cameras at once.

Exit codes: 0 all succeeded, 3 not all, 1 none has results, 2 usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pipeline_ver2.command import EXIT_FATAL, EXIT_PARTIAL, LOG_FORMAT, exit_codes, until_signalled
from pipeline_ver2.config import Config, load_config
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.live_options import moment_of
from pipeline_ver2.prompts import check_settings
from pipeline_ver2.streams import Ended, Stream, read_streams, run_streams
from pipeline_ver2.supervisor import Supervisor

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def streams(
    file: Annotated[Path, typer.Argument(help='JSON: {"streams": [{"id", "source", "policy", "deadline_s", …}]}.')],
    out: Annotated[Path, typer.Option(help="Output folder; each stream has its own in it.")] = Path("out/streams"),
    config: Annotated[Path | None, typer.Option(help="Configuration file; default ./config.json.")] = None,
    duration: Annotated[float | None, typer.Option(min=0.1, help="Seconds after which all end.")] = None,
    until: Annotated[str | None, typer.Option(help="When all end, as ISO 8601 has it.")] = None,
    *,
    no_spawn: Annotated[bool, typer.Option("--no-spawn", help="Use running daemons only.")] = False,
) -> None:
    """Follow several live streams through the same two stages, which they share in turns."""
    with exit_codes():
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        logging.getLogger("stamina").setLevel(logging.ERROR)  # its lines name neither stage nor reason
        settings, wanted = load_config(config), read_streams(file)
        for stream in wanted:
            check_settings(stream.settings(settings).pipeline)
        times = LiveSource("", duration_s=duration, until=None if until is None else moment_of(until))
        ended = asyncio.run(until_signalled(_follow(wanted, settings, out, times, spawn=not no_spawn)))
        Console().print(summary(ended))
    if all(each.results is None for each in ended.values()):
        raise typer.Exit(EXIT_FATAL)
    if any(each.results is None or each.results.state != "succeeded" for each in ended.values()):
        raise typer.Exit(EXIT_PARTIAL)


async def _follow(
    wanted: Sequence[Stream], config: Config, out: Path, times: LiveSource, *, spawn: bool
) -> Mapping[str, Ended]:
    async with Supervisor(config, spawn=spawn) as supervisor:
        return await supervisor.run(run_streams(wanted, config, out, times))


def summary(ended: Mapping[str, Ended]) -> Table:
    """One line for each stream."""
    table = Table(title="Streams")
    for heading in ("stream", "state", "slots", "ok", "failed", "shed", "dropped", "gaps", "p50 s", "p99 s"):
        table.add_column(heading, justify="left" if heading in {"stream", "state"} else "right")
    for id_, each in ended.items():
        if each.results is None:
            table.add_row(id_, f"failed: {each.error}")
            continue
        counts, latency = each.results.counts, each.results.timing.latency
        numbers = (counts.slots, counts.ok, counts.failed, counts.shed, counts.dropped, counts.gaps)
        times = ("-", "-") if latency is None else (f"{latency.p50_s:.2f}", f"{latency.p99_s:.2f}")
        table.add_row(id_, each.results.state, *map(str, numbers), *times)
    return table
