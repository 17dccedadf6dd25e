"""Starting, watching and stopping the daemons, mostly with a fake daemon that is quick and obedient, or not."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pipeline_ver2 import supervisor
from pipeline_ver2.config import Config, load_config
from pipeline_ver2.errors import ConfigError, StageError, StageUnreachable
from pipeline_ver2.stage_probe import Address
from pipeline_ver2.supervisor import Supervisor, daemon_command
from tests.pipeline_ver2.fake_stage import PATIENCE_S, Stage, is_running, until


@pytest.fixture
def stage(tmp_path: Path, free_ports: tuple[int, int]) -> Stage:
    """Fake daemons' surroundings."""
    return Stage(tmp_path, free_ports)


async def answers(url: str) -> bool:
    """Whether a daemon answers there."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url + "/livez") as reply:
            return reply.status == 200
    except aiohttp.ClientError:
        return False


def open_files() -> int:
    """How many files and connections this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_starts_what_is_missing_and_stops_it(stage: Stage) -> None:
    """Both daemons answer inside the block, and neither process nor private file is left after it."""
    async with Supervisor(stage.config, command=stage.command()) as supervised:
        assert supervised.started == ("stage1", "stage2")
        assert await answers(stage.config.stage1.base_url)
        assert await answers(stage.config.stage2.base_url)
        assert all(is_running(pid) for pid in stage.pids())
        log_files = sorted(path.name for path in (stage.folder / "work" / "logs").iterdir())
    assert log_files == ["stage1.log", "stage2.log"]
    assert len(stage.pids()) == 2
    assert not any(is_running(pid) for pid in stage.pids())
    assert stage.noted("term") == ["", ""]
    assert list((stage.folder / "work").glob("config-*")) == []


@pytest.mark.fault("B10")
async def test_stage_2_is_started_when_stage_1_is_ready(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """On one GPU Stage 1 has its memory before Stage 2 looks at what is free."""
    with caplog.at_level(logging.INFO):
        async with Supervisor(stage.config, command=stage.command()):
            pass
    first, second = "Stage 1 daemon active", "starting the Stage 2 daemon"
    told = [message for message in caplog.messages if message.startswith((first, second))]
    assert [message.startswith(begin) for message, begin in zip(told, (first, second), strict=True)] == [True, True]


async def test_a_stage_that_answers_is_used_and_left_alone(stage: Stage) -> None:
    """A daemon of somebody else is not started again, and still answers after the block."""
    async with Supervisor(stage.config, stages=("stage1",), command=stage.command()):
        async with Supervisor(stage.config, stages=("stage1",), command=stage.command()) as second:
            assert second.started == ()
        assert await answers(stage.config.stage1.base_url)
    assert len(stage.pids()) == 1


async def test_no_stage_wanted(stage: Stage) -> None:
    """With no stage to care for nothing is started."""
    async with Supervisor(stage.config, stages=(), command=stage.command()) as supervised:
        assert supervised.started == ()
    assert stage.pids() == []


async def test_not_allowed_to_start(stage: Stage) -> None:
    """Without permission to start daemons, an absent one is reported with its URL and key."""
    with pytest.raises(StageUnreachable, match=rf"stage1.port: nobody answers at http://127.0.0.1:{stage.ports[0]}"):
        async with Supervisor(stage.config, spawn=False):
            pass


async def test_never_starts_a_stage_of_another_machine() -> None:
    """A URL that is not loopback is only asked."""
    config = Config.model_validate({"stage2": {"url": "http://nobody.invalid:8002"}})
    with pytest.raises(StageUnreachable, match=r"stage2.url: .*not on this machine"):
        async with Supervisor(config, stages=("stage2",)):
            pass


async def test_port_taken_by_something_else(stage: Stage) -> None:
    """A port held by an unrelated server stops the start and names the key; the other stage is stopped again."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", stage.ports[1]).start()
        with pytest.raises(ConfigError, match=r"stage2.port: .* is taken by something else"):
            async with Supervisor(stage.config, command=stage.command()):
                pass
    finally:
        await runner.cleanup()
    assert not any(is_running(pid) for pid in stage.pids())


@pytest.mark.parametrize(("code", "expected"), [(2, ConfigError), (1, StageError), (0, StageError)])
async def test_a_daemon_that_ends_while_starting(stage: Stage, code: int, expected: type[Exception]) -> None:
    """Its exit code and last log line are the error; 2 means that it refused its configuration."""
    said = rf"Stage 1 ended while starting, with exit code {code}: error: stage1.model_path: no such file \(log: .*\)"
    with pytest.raises(expected, match=said):
        async with Supervisor(stage.config, stages=("stage1",), command=stage.command("--exit", str(code))):
            pass


async def test_the_error_a_daemon_gave_up_with(stage: Stage) -> None:
    """The error line counts, not the farewell that follows it; time and level are left out."""
    command = stage.command("--exit", "1", "--last-words", "2026-01-01 00:00:00,000 [ERROR] no GPU\nfinished")
    with pytest.raises(StageError, match="with exit code 1: no GPU "):
        async with Supervisor(stage.config, stages=("stage1",), command=command):
            pass


async def test_a_command_that_cannot_run(stage: Stage) -> None:
    """A program that does not exist is a stage that could not be started."""
    with pytest.raises(StageError, match="Stage 1 could not be started"):
        async with Supervisor(stage.config, stages=("stage1",), command=lambda *_: ["/nonexistent/python"]):
            pass


async def test_a_work_dir_that_cannot_be_made(stage: Stage) -> None:
    """A work folder below a file stops the start and names the key."""
    (stage.folder / "work").write_text("a file")
    with pytest.raises(ConfigError, match=r"paths\.work_dir"):
        async with Supervisor(stage.config, stages=("stage1",), command=stage.command()):
            pass


async def test_start_time_is_bounded(stage: Stage) -> None:
    """A daemon that never listens is ended after the start time-out."""
    slow = stage.config.stage2.model_copy(update={"start_timeout_s": 1.0})
    config = stage.config.model_copy(update={"stage2": slow})
    with pytest.raises(StageUnreachable, match=r"stage1.port: Stage 1 .* is not ready after 1 s"):
        async with Supervisor(config, stages=("stage1",), command=stage.command("--mute")):
            pass
    assert not any(is_running(pid) for pid in stage.pids())


@pytest.mark.fault("B7")
async def test_waits_for_a_stage_that_is_still_starting(stage: Stage) -> None:
    """A stage that answers 503 is waited for, not started again: the order of starting does not matter."""
    ready = False

    async def readyz(_: web.Request) -> web.Response:
        nonlocal ready
        status, ready = (200 if ready else 503), True
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/v2/models/yowov3", readyz)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", stage.ports[0]).start()
        async with Supervisor(stage.config, stages=("stage1",), command=stage.command()) as supervised:
            assert supervised.started == ()
    finally:
        await runner.cleanup()
    assert ready
    assert stage.pids() == []


@pytest.mark.fault("O5")
async def test_a_killed_daemon_is_started_again(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """After kill -9 a new daemon answers at the same address, and the log says why."""
    with caplog.at_level(logging.INFO):
        async with Supervisor(stage.config, stages=("stage1",), command=stage.command()):
            os.kill(stage.pids()[0], signal.SIGKILL)
            await until(lambda: caplog.text.count("Stage 1 daemon active") == 2)
            assert await answers(stage.config.stage1.base_url)
            assert len(stage.pids()) == 2
    assert "Stage 1 died, killed by SIGKILL" in caplog.text
    assert not any(is_running(pid) for pid in stage.pids())


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_daemon_killed_fifty_times(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Deaths of daemons that had worked never add up, and no restart leaves a file or a process behind."""
    monkeypatch.setattr(supervisor, "STABLE_S", -1.0)
    caplog.set_level(logging.INFO)

    def serves(number: int) -> bool:
        return caplog.text.count("daemon active") == len(stage.pids()) == number

    async with Supervisor(stage.config, stages=("stage1",), command=stage.command("--child")):
        before = open_files()
        for deaths in range(1, 51):
            os.kill(stage.pids()[-1], signal.SIGKILL)
            await until(partial(serves, deaths + 1))
        assert open_files() <= before + 1  # a connection of the last question may be closing
    assert not any(is_running(int(pid)) for pid in stage.noted("pid") + stage.noted("child"))


@pytest.mark.fault("B7")
@pytest.mark.parametrize("code", [0, 1])
async def test_gives_up_after_too_many_deaths(stage: Stage, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A daemon that keeps dying, exit code 0 included, fails whoever waits after a bounded number of starts."""
    monkeypatch.setattr(supervisor, "RESTART_PAUSE_S", 0.001)
    commands = iter([stage.command()])
    failing = stage.command("--exit", str(code))

    def command(address: Address, config_file: Path) -> Sequence[str]:
        return next(commands, failing)(address, config_file)

    async with Supervisor(stage.config, stages=("stage1",), command=command) as supervised:
        os.kill(stage.pids()[0], signal.SIGKILL)
        with pytest.raises(
            StageError, match=rf"Stage 1 died 6 times in a row, the last time with exit code {code}: error"
        ):
            await asyncio.wait_for(supervised.wait_failed(), PATIENCE_S)
    assert len(stage.pids()) == 1 + supervisor.MAX_RESTARTS


async def test_waiting_for_a_failure_can_be_cancelled(stage: Stage) -> None:
    """With healthy daemons, or none, waiting goes on until it is cancelled, and cancels no watcher."""
    for stages in (("stage1",), ()):
        async with Supervisor(stage.config, stages=stages, command=stage.command()) as supervised:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(supervised.wait_failed(), 0.05)
    assert len(stage.pids()) == 1


async def test_a_deaf_daemon_and_its_children_are_killed(stage: Stage) -> None:
    """A daemon that ignores SIGTERM is killed after the grace time, with all of its group."""
    command = stage.command("--deaf", "--child")
    async with Supervisor(stage.config, stages=("stage1",), command=command, stop_grace_s=0.1):
        pass
    assert not any(is_running(pid) for pid in stage.pids())
    await until(lambda: not is_running(int(stage.noted("child")[0])))


async def test_children_of_a_dead_daemon_are_killed(stage: Stage) -> None:
    """What a killed daemon leaves in its group does not outlive it."""
    async with Supervisor(stage.config, stages=("stage1",), command=stage.command("--child")):
        os.kill(stage.pids()[0], signal.SIGKILL)
        await until(lambda: len(stage.pids()) == 2)
        assert not is_running(int(stage.noted("child")[0]))


async def test_cancelled_while_stopping_kills_at_once(stage: Stage) -> None:
    """A second interruption does not wait for the grace time, and still leaves nothing behind."""
    supervised = Supervisor(stage.config, command=stage.command("--deaf"), stop_grace_s=600)
    await supervised.__aenter__()
    closing = asyncio.create_task(supervised.close())
    await until(lambda: len(stage.noted("term")) == 2)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(closing, PATIENCE_S)
    assert not any(is_running(pid) for pid in stage.pids())


async def test_cancelled_while_starting(stage: Stage) -> None:
    """A cancel during the start stops what was started so far."""

    async def enter() -> None:
        async with Supervisor(stage.config, command=stage.command("--mute")):
            pass

    entering = asyncio.create_task(enter())
    await until(stage.pids)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(entering, PATIENCE_S)
    assert not any(is_running(pid) for pid in stage.pids())


async def test_closing_twice(stage: Stage) -> None:
    """Closing again changes nothing."""
    supervised = Supervisor(stage.config, stages=("stage1",), command=stage.command())
    async with supervised:
        pass
    await supervised.close()
    assert stage.noted("term") == [""]


async def test_daemons_get_the_effective_configuration(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon reads the whole configuration with absolute paths from a private file, and no ZROACT_ variable."""
    monkeypatch.setenv("ZROACT_STAGE2__LIMIT", "7")
    overrides: dict[str, Any] = {"stage1.port": stage.ports[0], "paths.work_dir": "work", "stage1.model_path": "m.onnx"}
    monkeypatch.chdir(tmp_path)
    config = load_config(overrides=overrides)
    modes: list[int] = []

    def command(address: Address, config_file: Path) -> Sequence[str]:
        modes.append(stat.S_IMODE(config_file.stat().st_mode))
        return stage.command()(address, config_file)

    async with Supervisor(config, stages=("stage1",), command=command):
        seen = json.loads((stage.folder / "seen.json").read_text())
    assert modes == [0o600]
    assert stage.noted("leaked") == ["[]"]
    assert seen["stage2"]["limit"] == 7
    assert seen["stage1"]["model_path"] == str(tmp_path / "m.onnx")
    assert seen["paths"]["media_roots"] == [str(tmp_path / "media"), str(tmp_path / "out")]
    assert load_config(stage.folder / "seen.json", environ={}) == config


def test_the_daemons_command_line(tmp_path: Path) -> None:
    """Daemons are modules of this interpreter, told their file, their place and to watch their input."""
    address = Address("stage2", "http://127.0.0.1:9", "127.0.0.1", 9, "stage2.port")
    expected = [
        *(sys.executable, "-P", "-m", "serving.workers.stage2_server", "--config", str(tmp_path)),
        *("--host", "127.0.0.1", "--port", "9", "--watch-stdin"),
    ]
    assert daemon_command(address, tmp_path) == expected


def start_owner(stage: Stage, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own that supervises two fake daemons; returns when they are up."""
    options = [str(stage.folder), *map(str, stage.ports), *arguments]
    command = [sys.executable, "-m", "tests.pipeline_ver2.owner", *options]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    owner.stdout.close()
    return owner


@pytest.mark.fault("O5")
async def test_daemons_do_not_outlive_a_killed_owner(stage: Stage) -> None:
    """After kill -9 of the supervising process the daemons see their input close and end."""
    owner = start_owner(stage)
    assert len(stage.pids()) == 2
    owner.kill()
    owner.wait()
    await until(lambda: not any(is_running(pid) for pid in stage.pids()))
    assert stage.noted("orphaned") == ["", ""]


@pytest.mark.fault("O6")
async def test_interrupted_once(stage: Stage) -> None:
    """Ctrl-C reaches the supervising process only, which ends its daemons the gentle way."""
    owner = start_owner(stage)
    owner.send_signal(signal.SIGINT)
    assert owner.wait(PATIENCE_S) != 0
    assert stage.noted("term") == ["", ""]
    assert not any(is_running(pid) for pid in stage.pids())


async def test_interrupted_twice(stage: Stage) -> None:
    """The second Ctrl-C does not wait for daemons that will not end."""
    owner = start_owner(stage, "--deaf")
    owner.send_signal(signal.SIGINT)
    await until(lambda: len(stage.noted("term")) == 2)
    assert all(is_running(pid) for pid in stage.pids())
    owner.send_signal(signal.SIGINT)
    assert owner.wait(PATIENCE_S) != 0
    assert not any(is_running(pid) for pid in stage.pids())
