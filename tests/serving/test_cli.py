"""The `zroact` command as people call it: real processes, real daemons with emulated engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.pipeline_ver2.fake_stage import PATIENCE_S, is_running, until

ZROACT = Path(sys.executable).with_name("zroact")


def call(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command to its end in a folder."""
    return subprocess.run(
        [ZROACT, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


@pytest.fixture
def folder(tmp_path: Path, three_free_ports: tuple[int, int, int]) -> Path:
    """A folder with a configuration of emulated engines on free ports."""
    first, second, third = three_free_ports
    content = {
        "stage1": {"port": first, "engine": "emulated"},
        "stage2": {"port": second, "engine": "emulated", "start_timeout_s": PATIENCE_S},
        "serving": {"port": third},
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    return tmp_path


class Up:
    """A running `zroact up`, and the daemons it started."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process

    def daemons(self, stage: str) -> list[int]:
        """Process ids of the daemons of a stage that have listened so far."""
        log = (self.folder / "work/logs" / f"{stage}.log").read_text()
        return [json.loads(line)["pid"] for line in log.splitlines() if line.startswith("{")]

    def restarted(self, stage: str) -> bool:
        """Whether a second daemon of a stage listens."""
        return len(self.daemons(stage)) == 2

    def all_daemons(self) -> list[int]:
        """Process ids of the daemons of both stages."""
        return self.daemons("stage1") + self.daemons("stage2")

    def url(self, stage: str) -> str:
        """Where a stage is."""
        port = json.loads((self.folder / "config.json").read_text())[stage]["port"]
        return f"http://127.0.0.1:{port}"


@contextmanager
def up(folder: Path) -> Iterator[Up]:
    """`zroact up` in a folder; given when both stages are ready."""
    with (folder / "up.log").open("w") as log:
        process = subprocess.Popen([ZROACT, "up"], cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: Stage 1 at"), (folder / "up.log").read_text()
        yield Up(folder, process)
    finally:
        process.kill()
        process.communicate()


def test_version(tmp_path: Path) -> None:
    """It says its name and version."""
    told = call("--version", folder=tmp_path)
    assert (told.returncode, told.stdout.split()[0]) == (0, "zroact-stage2")


def test_help_names_every_subcommand(tmp_path: Path) -> None:
    """The list of what can be done."""
    told = call("--help", folder=tmp_path)
    assert told.returncode == 0
    assert {"up", "worker", "stage1", "stage2", "run", "bench", "plan-vram", "probe"} <= set(told.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stage1", "--help"], "--watch-stdin"),
        (["stage2", "--help"], "--watch-stdin"),
        (["run", "--help"], "--annotate"),
        (["bench", "--help"], "seed"),
        (["up", "--help"], "--config"),
        (["worker", "--help"], "--adopt"),
        (["plan-vram", "--help"], "--per-request-gb"),
    ],
)
def test_subcommands_explain_themselves(tmp_path: Path, arguments: Sequence[str], said: str) -> None:
    """Help of a subcommand is its own, though it is imported only when called."""
    told = call(*arguments, folder=tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    assert said in told.stdout


def test_probe_tells_what_is_in_a_file(folder: Path, clip: Path) -> None:
    """Text for people, one object for machines; exit code 1 and the reason if the file cannot be used."""
    told = call("probe", str(clip), folder=folder)
    assert (told.returncode, told.stderr) == (0, "")
    assert "keyframes   13 in 4 Stage 1 batches" in told.stdout
    told = call("probe", str(clip), "--json", "--full", folder=folder)
    assert (told.returncode, json.loads(told.stdout)["plan"]["slots"]) == (0, 5)
    told = call("probe", "config.json", "--json", folder=folder)
    assert (told.returncode, json.loads(told.stdout)["usable"]) == (1, False)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nonsense"], 2, "nonsense"),
        (["up", "--nonsense"], 2, "--nonsense"),
        (["up", "--config", "missing.json"], 2, "missing.json"),
        (["stage1", "--config", "missing.json"], 2, "missing.json"),
        (["stage2", "--port", "many"], 2, "--port"),
        (["plan-vram", "--per-request-gb", "much"], 2, "--per-request-gb"),
        (["run"], 2, "clip"),
        (["run", "missing.mp4", "--config", "missing.json"], 2, "missing.json"),
        (["run", "missing.mp4"], 1, "missing.mp4"),
        (["probe", "clip.mp4", "--config", "missing.json"], 2, "missing.json"),
    ],
)
def test_mistakes_are_told_without_a_traceback(folder: Path, arguments: Sequence[str], code: int, said: str) -> None:
    """Usage and configuration end with 2, the rest with 1, always in words."""
    told = call(*arguments, folder=folder)
    assert told.returncode == code
    assert said in told.stderr
    assert "Traceback" not in told.stderr


def test_the_vram_plan(tmp_path: Path) -> None:
    """As JSON with the documented figures; as a table on a card too small for anything, with exit code 1."""
    documented = call("plan-vram", "--total-gb", "47.5", "--reserved-gb", "26", "--json", folder=tmp_path)
    plan = json.loads(documented.stdout)
    assert (documented.returncode, plan["recommended_limit"], plan["rows"][3]["short_gb"]) == (0, 2, 10.5)
    small = call("plan-vram", "--total-gb", "8", "--reserved-gb", "2", "--per-request-gb", "1-3", folder=tmp_path)
    assert small.returncode == 1
    assert "nothing fits: one request does not fit by 3 GB" in small.stdout


def test_an_error_is_one_line(folder: Path) -> None:
    """An unknown key is named in a single line."""
    (folder / "config.json").write_text('{"stage1": {"prot": 1}}')
    told = call("up", folder=folder)
    assert told.returncode == 2
    assert told.stderr == "error: config.json: stage1.prot: unknown key\n"


def test_a_daemon_that_cannot_start_ends_it(folder: Path) -> None:
    """What a daemon refuses is what `up` says, with the daemon's exit code."""
    content = json.loads((folder / "config.json").read_text())
    content["stage1"] |= {"engine": "onnx", "model_path": "missing.onnx"}
    (folder / "config.json").write_text(json.dumps(content))
    told = call("up", folder=folder)
    assert told.returncode == 2
    assert "missing.onnx" in told.stderr.splitlines()[-1]
    assert "Traceback" not in told.stderr


@pytest.mark.slow
@pytest.mark.fault("O5")
async def test_up_keeps_both_daemons_up(folder: Path) -> None:
    """A daemon that is killed comes back; Ctrl-C stops both and is no error."""
    with up(folder) as running:
        for stage in ("stage1", "stage2"):
            os.kill(running.daemons(stage)[0], signal.SIGKILL)
            await until(partial(running.restarted, stage))
        async with aiohttp.ClientSession() as session:
            for stage in ("stage1", "stage2"):
                async with session.get(running.url(stage) + "/livez") as reply:
                    assert reply.status == 200
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE_S) == 0
        assert not any(is_running(pid) for pid in running.all_daemons())
    assert "Stage 1 died, killed by SIGKILL" in (folder / "up.log").read_text()


@pytest.mark.slow
@pytest.mark.fault("O5")
async def test_daemons_do_not_outlive_up(folder: Path) -> None:
    """After kill -9 of `up` both real daemons end by themselves."""
    with up(folder) as running:
        assert all(is_running(pid) for pid in running.all_daemons())
        running.process.kill()
        await until(lambda: not any(is_running(pid) for pid in running.all_daemons()))


@pytest.mark.slow
@pytest.mark.fault("O6")
def test_up_ends_on_sigterm(folder: Path) -> None:
    """A service manager's SIGTERM is an orderly end; a second `up` beside it finds the address taken."""
    with up(folder) as running:
        second = call("up", folder=folder)
        assert second.returncode == 2
        assert "serving.port" in second.stderr
        assert "already in use" in second.stderr
        running.process.terminate()
        assert running.process.wait(PATIENCE_S) == 0
        assert not any(is_running(pid) for pid in running.all_daemons())
