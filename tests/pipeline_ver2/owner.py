"""A process of its own that supervises two fake daemons until it is interrupted."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pipeline_ver2.supervisor import Supervisor
from tests.pipeline_ver2.fake_stage import Stage


async def own(folder: str, first: str, second: str, *arguments: str) -> None:
    """Say so when both are up; then wait."""
    stage = Stage(Path(folder), (int(first), int(second)))
    async with Supervisor(stage.config, command=stage.command(*arguments), stop_grace_s=600):
        sys.stdout.write("up\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(own(*sys.argv[1:]))
