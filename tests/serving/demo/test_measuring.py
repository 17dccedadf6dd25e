"""Drawing beside asking, the daemons' configuration, and how commands end."""

from __future__ import annotations

import argparse
import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.errors import BadReply, ConfigError, QueueFull, StageError, StageUnreachable, ZroactError
from pipeline_ver2.findings import ClipFindings
from pipeline_ver2.stage_clients import DetectorInfo
from pipeline_ver2.supervisor import Supervisor
from serving.demo.measuring import (
    AT_ONCE,
    add_daemon_options,
    check_labels,
    conclude,
    config_of,
    drawn_and_asked,
    new_run,
    spread,
    stages_up,
    telling,
    whole,
)
from serving.demo.skeleton import LABELS
from tests.stand_ins import Stages


def options(*arguments: str) -> argparse.Namespace:
    """Parsed options of the daemons."""
    parser = argparse.ArgumentParser()
    add_daemon_options(parser)
    return parser.parse_args(arguments)


async def test_results_come_in_the_order_of_the_items() -> None:
    """However long each takes, result n is that of item n; and a bounded number is in being at a time."""
    running = most = 0
    gate = asyncio.Event()

    async def ask(number: int, drawn: str) -> tuple[int, str]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == AT_ONCE:
            gate.set()
        await gate.wait()
        running -= 1
        return number, drawn

    heard: list[str] = []
    found = await drawn_and_asked(range(9), str, ask, heard.append)
    assert found == [(number, str(number)) for number in range(9)]
    assert most == AT_ONCE
    assert heard == ["9 of 9"]


async def test_nothing_to_measure_is_nothing_found() -> None:
    """No items: no results, nothing told, no waiting."""

    async def ask(_number: int, _drawn: int) -> int:
        raise AssertionError("nothing is asked")

    assert await drawn_and_asked([], int, ask, pytest.fail) == []


@pytest.mark.parametrize("fails", ["draw", "ask"])
async def test_the_first_failure_ends_the_rest(fails: str) -> None:
    """An error of the tree comes out as itself, and what else was in being is let go of."""
    left = []

    def draw(number: int) -> int:
        if (fails, number) == ("draw", 1):
            raise QueueFull("draw")
        return number

    async def ask(number: int, _drawn: int) -> int:
        if (fails, number) == ("ask", 1):
            raise StageError("ask")
        try:
            await asyncio.Event().wait()
        finally:
            left.append(number)
        return number

    with pytest.raises(StageError, match=fails):
        await drawn_and_asked(range(20), draw, ask, pytest.fail)
    assert len(left) < AT_ONCE


async def test_a_cancel_passes_through() -> None:
    """Whoever cancels the measurement gets the cancellation back, and no asking goes on."""
    begun, ended = asyncio.Event(), threading.Event()

    async def ask(_number: int, _drawn: int) -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 0

    task = asyncio.create_task(drawn_and_asked([1], int, ask, pytest.fail))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def test_own_daemons_get_free_ports_and_the_given_files(tmp_path: Path) -> None:
    """Without URLs both stages are on loopback ports of their own, one thread each, with the files that were named."""
    config = config_of(options("--detector", "d.onnx", "--model", "folder"), tmp_path)
    assert config.stage1.port != config.stage2.port
    assert config.stage1.model_path == Path("d.onnx").absolute()
    assert config.stage2.model == str(Path("folder").absolute())
    assert (config.stage1.threads, config.stage2.threads, config.stage2.engine) == (1, 1, "transformers")
    assert Supervisor(config).started == ()


def test_running_daemons_are_used(tmp_path: Path) -> None:
    """A URL is where the clients go; embedded files are the default."""
    config = config_of(options("--stage1-url", "http://127.0.0.1:1/", "--stage2-url", "http://127.0.0.1:2"), tmp_path)
    assert (config.stage1.base_url, config.stage2.base_url) == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert (config.stage1.model_path, config.stage2.model) == (None, None)


async def test_nothing_is_started_in_the_place_of_a_named_stage(tmp_path: Path, free_ports: tuple[int, int]) -> None:
    """Nobody at a URL is an error: an embedded model there would be measured instead of what was meant."""
    config = config_of(options("--stage1-url", f"http://127.0.0.1:{free_ports[0]}"), tmp_path)
    with pytest.raises(StageUnreachable, match=r"stage1\.url"):
        async with stages_up(config, ("stage1",)):
            pytest.fail("nothing runs there")


async def test_named_stages_and_no_stages_are_used_as_they_are(stages: Stages, config: Config) -> None:
    """Stages that run are taken; a block that needs none starts none."""
    async with stages_up(config, ("stage1", "stage2")), stages_up(Config(), ()):
        assert stages.stage1.keys == stages.stage2.keys == []


def test_another_world_is_refused() -> None:
    """A detector with other labels, or the same in another order, cannot be measured here."""
    for labels in (("walk",), LABELS[::-1]):
        with pytest.raises(ConfigError, match="walk"):
            check_labels(DetectorInfo("other", "test", labels, 16, (224, 224), None, None))
    check_labels(DetectorInfo("demo", "test", LABELS, 16, (224, 224), None, None))


def test_a_clip_that_failed_is_an_error() -> None:
    """Findings pass, a failure is raised: a measurement leaves nothing out."""
    found = ClipFindings(np.zeros((0, 4), np.float32), np.zeros((0, 6), np.float32))
    assert whole(found) is found
    with pytest.raises(BadReply, match="broken"):
        whole(BadReply("broken"))


def test_spread_is_the_distance_between_the_sets() -> None:
    """Shares of both sets are compared; counts, tables, and what one set lacks are not."""
    first: dict[str, Any] = {"right": 0.9, "none": None, "people": 3, "by": {}}
    second: dict[str, Any] = {"right": 0.7, "none": 0.5, "people": 4, "by": {}}
    sets = {"A": first, "B": second}
    assert spread(sets) == {"right": pytest.approx(0.2)}


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("said"), 2), (StageError("said"), 1), (KeyboardInterrupt(), 130)]
)
def test_errors_become_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for an error of the tree, none for Ctrl-C, and the documented exit codes."""

    async def work() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        conclude(work())
    assert ended.value.code == code
    assert capsys.readouterr().err == ("error: said\n" if isinstance(error, ZroactError) else "")


def test_runs_and_progress_have_names() -> None:
    """No two runs share their requests' keys; progress says what it is about."""
    heard: list[str] = []
    telling("set A", heard.append)("3 of 9")
    assert heard == ["set A: 3 of 9"]
    assert new_run() != new_run()
