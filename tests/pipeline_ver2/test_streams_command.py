"""`zroact streams`, and `zroact run` on live sources, as they are called."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline_ver2 import command
from pipeline_ver2.config import child_environment
from pipeline_ver2.errors import SourceLost
from pipeline_ver2.results import read_results
from pipeline_ver2.streams import Ended
from pipeline_ver2.streams_command import app, summary
from tests.live_camera import transport_stream
from tests.pipeline_ver2.conftest import settings_for
from tests.pipeline_ver2.fake_stage import until
from tests.stand_ins import Stages


@pytest.fixture
def config_file(stages: Stages, tmp_path: Path) -> Path:
    """A configuration file that leads to the stand-ins."""
    file = tmp_path / "config.json"
    file.write_text(settings_for(stages).model_dump_json())
    return file


async def called(*arguments: str, folder: Path, sent: bytes | None = None) -> tuple[int | None, str]:
    """Run `python -m` with these arguments; exit code and standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=child_environment({"PYTHONPATH": str(Path(__file__).parents[2])}),
    )
    output, errors = await process.communicate(sent)
    return process.returncode, (output + errors).decode()


@pytest.mark.slow
async def test_what_comes_on_standard_input_is_followed(config_file: Path, tmp_path: Path) -> None:
    """Until it ends."""
    sent = b"".join(transport_stream(100))
    arguments = ["pipeline_ver2.realtime_pipeline", "-", "--config", str(config_file), "--no-spawn", "--out", "out"]
    code, told = await called(*arguments, "--policy", "wait", "--deadline", "0", folder=tmp_path, sent=sent)
    results = read_results(tmp_path / "out")
    assert code == 0, told
    assert (results.source, results.counts.frames_decoded, results.counts.keyframes) == ("-", 100, 9)
    assert results.counts.ok == results.counts.slots == 3


@pytest.mark.slow
async def test_a_signal_ends_all_streams(config_file: Path, clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Within limits, exit code 130, and each keeps its results."""
    streams = [{"id": name, "source": str(clip), "live": True} for name in ("one", "two")]
    (tmp_path / "streams.json").write_text(json.dumps({"streams": streams}))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from pipeline_ver2.streams_command import app; app()",
        *("streams.json", "--config", str(config_file), "--no-spawn", "--out", "out"),
        cwd=tmp_path,
        stderr=asyncio.subprocess.DEVNULL,
        env=child_environment({"PYTHONPATH": str(Path(__file__).parents[2])}),
    )
    await until(lambda: len(stages.stage2.clients) == 2)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 20) == command.EXIT_INTERRUPTED
    assert [read_results(tmp_path / "out" / name).state for name in ("one", "two")] == ["cancelled"] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["nothing.json"], "nothing.json"), (["streams.json", "--until", "soon"], "--until")],
)
def test_a_wrong_argument_is_a_usage_error(arguments: list[str], said: str, tmp_path: Path) -> None:
    """Exit code 2, before anything is started."""
    file = tmp_path / "streams.json"
    file.write_text('{"streams": [{"id": "a", "source": "-"}]}')
    shown = CliRunner().invoke(app, [str(tmp_path / arguments[0]), *arguments[1:]])
    assert (shown.exit_code, said in shown.output) == (command.EXIT_USAGE, True)


@pytest.mark.parametrize("option", [["--policy", "WAIT"], ["--deadline", "3"], ["--until", "2030-01-01"]])
def test_options_of_live_sources_are_not_for_files(option: list[str], clip: Path) -> None:
    """A file that nobody asked to read live has no deadline."""
    shown = CliRunner().invoke(command.app, [str(clip), *option])
    assert (shown.exit_code, "for live sources" in shown.output) == (command.EXIT_USAGE, True)


def test_the_summary_has_a_line_for_each_stream() -> None:
    """One without results says why."""
    table = summary({"gate": Ended(None, SourceLost("planted"))})
    assert table.row_count == 1
    assert "planted" in str([column._cells for column in table.columns])
