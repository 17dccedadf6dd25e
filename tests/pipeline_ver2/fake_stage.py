"""A folder with fake daemons in it, and how to see what became of processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline_ver2.config import Config
from pipeline_ver2.stage_probe import Address
from pipeline_ver2.supervisor import DaemonCommand

FAKE = Path(__file__).with_name("fake_daemon.py")
PATIENCE_S = 30.0


class Stage:
    """A folder and a configuration for fake daemons, and what they noted."""

    def __init__(self, folder: Path, ports: tuple[int, int]) -> None:
        self.folder = folder
        self.ports = ports
        content = {
            "paths": {"work_dir": str(folder / "work")},
            "stage1": {"port": ports[0]},
            "stage2": {"port": ports[1], "start_timeout_s": PATIENCE_S},
        }
        self.config = Config.model_validate(content)

    def command(self, *arguments: str) -> DaemonCommand:
        """How to start a fake daemon that behaves as the arguments say."""

        def build(address: Address, config_file: Path) -> Sequence[str]:
            place = ["--host", address.host, "--port", str(address.port), "--config", str(config_file)]
            return [sys.executable, str(FAKE), *place, "--folder", str(self.folder), *arguments]

        return build

    def noted(self, word: str) -> list[str]:
        """What fake daemons noted under a word, oldest first."""
        file = self.folder / "events"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.removeprefix(word).strip() for line in lines if line.startswith(word)]

    def pids(self) -> list[int]:
        """Process ids of the fake daemons started so far."""
        return [int(pid) for pid in self.noted("pid")]


def is_running(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z"


async def until(condition: Callable[[], object]) -> None:
    """Ask until it is so; a bounded wait."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what other processes do sets no event here
            await asyncio.sleep(0.01)
