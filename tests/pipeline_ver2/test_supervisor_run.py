"""Work that needs the stages, and ends when one of them stays away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline_ver2.errors import StageError
from pipeline_ver2.stage_probe import Address
from pipeline_ver2.supervisor import Supervisor
from tests.pipeline_ver2.fake_stage import Stage


@pytest.fixture
def stage(tmp_path: Path, free_ports: tuple[int, int]) -> Stage:
    """Fake daemons' surroundings."""
    return Stage(tmp_path, free_ports)


@pytest.mark.fault("O5")
async def test_work_ends_when_a_stage_cannot_come_back(stage: Stage) -> None:
    """A daemon that died and refuses its configuration ends the work at once, with its last words."""
    cancelled, arguments, command = asyncio.Event(), list[str](), stage.command()

    async def work() -> None:
        os.kill(stage.pids()[0], signal.SIGKILL)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def changed(address: Address, config_file: Path) -> Sequence[str]:
        return [*command(address, config_file), *arguments]

    async with Supervisor(stage.config, stages=("stage1",), command=changed) as supervised:
        arguments += ["--exit", "2"]
        with pytest.raises(StageError, match=r"cannot start again: .*no such file"):
            await supervised.run(work())
    assert cancelled.is_set()


async def test_work_that_is_done_is_given_back(stage: Stage) -> None:
    """Its result or its error, and a cancel reaches it."""

    async def work(number: int) -> int:
        return 1 // number

    async with Supervisor(stage.config, stages=("stage1",), command=stage.command()) as supervised:
        assert await supervised.run(work(1)) == 1
        with pytest.raises(ZeroDivisionError):
            await supervised.run(work(0))
        task = asyncio.create_task(supervised.run(asyncio.sleep(600)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
