"""`zroact bench` as it is called."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pipeline_ver2.config import child_environment
from serving.bench.bars import Bar
from serving.bench.command import app, conclude
from serving.bench.tables import bars_table
from tests.pipeline_ver2.fake_stage import until

REACHED, MISSED = Bar("a bar", 1, "<=", 2), Bar("a bar", 3, "<=", 2)


def test_the_benchmarks_are_listed() -> None:
    """Without arguments the command tells what there is."""
    shown = CliRunner().invoke(app, [])
    assert "seed" in shown.output
    assert "demo" in shown.output


@pytest.mark.parametrize(
    "arguments", [["seed", "--rows", "nonsense"], ["seed", "--repeat", "0"], ["demo", "--pairs", "0"]]
)
def test_a_wrong_argument_is_a_usage_error(arguments: list[str]) -> None:
    """Exit code 2, before anything is started."""
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_json_is_one_object(capsys: pytest.CaptureFixture[str], seed_report: dict[str, Any]) -> None:
    """Standard output holds the report and nothing else."""
    conclude(seed_report, [bars_table([REACHED])], [REACHED], as_json=True)
    assert json.loads(capsys.readouterr().out) == seed_report


def test_tables_for_people(capsys: pytest.CaptureFixture[str], seed_report: dict[str, Any]) -> None:
    """Without `--json` the tables are shown."""
    conclude(seed_report, [bars_table([REACHED])], [REACHED], as_json=False)
    assert "a bar" in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [True, False])
def test_a_missed_bar_is_exit_code_1(
    capsys: pytest.CaptureFixture[str],
    as_json: bool,  # noqa: FBT001 - both ways of output
) -> None:
    """The report is shown all the same."""
    with pytest.raises(typer.Exit) as ended:
        conclude({"bars": ["a bar"]}, [bars_table([MISSED])], [MISSED], as_json=as_json)
    assert ended.value.exit_code == 1
    assert "a bar" in capsys.readouterr().out


def test_a_missed_target_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0: targets do not decide."""
    conclude({}, [], [REACHED, Bar.hoped_for("more", 3, "<=", 2)], as_json=True)
    assert capsys.readouterr().out == "{}\n"


def names_in(folder: Path) -> list[str]:
    """What lies in a folder."""
    return [path.name for path in folder.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_benchmark_that_is_stopped_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 130, and its folder, which holds everything it writes, is gone."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from serving.bench.command import app; app()", "seed", "--rows", "abc4"),
        env=child_environment({"TMPDIR": str(tmp_path)}),
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: list(tmp_path.glob("*/work/logs/stage1.log")))
    process.send_signal(number)
    _, told = await process.communicate()
    assert process.returncode == 130
    assert b"a benchmark keeps nothing" in told
    assert names_in(tmp_path) == []
