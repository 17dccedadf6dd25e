"""Real daemons with emulated engines, killed in the middle of a run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.job import Job, Silent
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import JOURNAL_NAME, KeyframeRecord, SlotRecord
from pipeline_ver2.supervisor import Supervisor
from tests.services.job_server import process_of

pytestmark = pytest.mark.slow


def emulated_in(folder: Path, ports: tuple[int, int]) -> Config:
    """Both stages emulated and quick, on free ports."""
    values = {
        "paths.work_dir": str(folder / "work"),
        "stage1.port": ports[0],
        "stage2.port": ports[1],
        "stage1.engine": "emulated",
        "stage2.engine": "emulated",
        "stage1.emulated.service_s": 0.1,
        "stage2.emulated.service_s": 0.2,
    }
    return load_config(None, values, environ={})


class KillAfter(Silent):
    """Kills daemons once so many records of a kind were written."""

    def __init__(self, kind: type[KeyframeRecord | SlotRecord], count: int, victims: dict[str, int]) -> None:
        self._kind, self._left, self._victims = kind, count, victims

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """Count down; at zero, kill -9."""
        self._left -= isinstance(record, self._kind)
        if self._left == 0:
            self._left = -1
            for stage, port in self._victims.items():
                os.kill(process_of(stage, port), signal.SIGKILL)


def slot_records(folder: Path) -> Counter[int]:
    """How many records each slot has in the journal."""
    lines = (folder / JOURNAL_NAME).read_text().splitlines()[1:]
    return Counter(SlotRecord.model_validate_json(line).index for line in lines if '"slot"' in line)


@pytest.mark.fault("O5")
@pytest.mark.fault("B7")
@pytest.mark.parametrize("victims", [("stage1",), ("stage2",), ("stage1", "stage2")])
async def test_a_killed_daemon_comes_back_and_the_run_goes_on(
    clip: Path, tmp_path: Path, free_ports: tuple[int, int], victims: tuple[str, ...]
) -> None:
    """kill -9 of either daemon or both: restarted, every slot answered, one record a slot, at most two sends."""
    config = emulated_in(tmp_path, free_ports)
    ports = dict(zip(("stage1", "stage2"), free_ports, strict=True))
    async with Supervisor(config):
        for kind, count in ((KeyframeRecord, 4), (SlotRecord, 2)):
            out = tmp_path / kind.__name__
            killer = KillAfter(kind, count, {stage: ports[stage] for stage in victims})
            results = await asyncio.wait_for(run_pipeline(Job(clip, out), config, killer), 60)

            assert [(slot.state, slot.reason) for slot in results.slots] == [("ok", None)] * 5
            assert max(slot.attempts for slot in results.slots) <= 2
            assert slot_records(out) == Counter(range(5))


async def test_a_run_outlives_the_one_whose_daemons_it_borrowed(
    clip: Path, tmp_path: Path, free_ports: tuple[int, int]
) -> None:
    """When the run that started the daemons ends and stops them, the other starts them again and goes on."""
    config = emulated_in(tmp_path, free_ports)
    owner, borrower = Supervisor(config), Supervisor(config)
    async with owner:
        await borrower.__aenter__()
        assert borrower.started == ()
    try:
        results = await asyncio.wait_for(run_pipeline(Job(clip, tmp_path / "out"), config), 60)
        assert [slot.state for slot in results.slots] == ["ok"] * 5
        assert set(borrower.started) == {"stage1", "stage2"}
    finally:
        await borrower.__aexit__(None, None, None)
