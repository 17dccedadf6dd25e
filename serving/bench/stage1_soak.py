"""The Stage 1 daemon under many clients for a while: whether it fails, and whether its memory grows."""

from __future__ import annotations

import asyncio
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline_ver2.errors import StageError
from serving.bench.stage1_load import LoadFigures, RequestMaker, load

SAMPLE_S = 0.5
_WARM_UP_SHARE = 0.25
_MIB = 1024


@dataclass(frozen=True, slots=True)
class SoakFigures:
    """A long load, and the daemon's resident memory in MiB while it ran, oldest first."""

    clients: int
    load: LoadFigures
    rss_mb: tuple[float, ...]

    @property
    def growth_percent(self) -> float:
        """Of memory: from the median of the first fifth of the samples to that of the last."""
        some = max(1, len(self.rss_mb) // 5)
        return 100 * (statistics.median(self.rss_mb[-some:]) / statistics.median(self.rss_mb[:some]) - 1)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "clients": self.clients,
            **self.load.as_dict(),
            "failures": list(self.load.failures),
            "memory_growth_percent": round(self.growth_percent, 2),
            "rss_mb": [round(sample, 1) for sample in self.rss_mb],
        }


async def soak(
    port: int, pid: int, make: RequestMaker, *, clips: int, clients: int, seconds: float, sample_s: float = SAMPLE_S
) -> SoakFigures:
    """Load a daemon, a quarter of the time before its memory is looked at, which has to reach its level first.

    Raises:
        StageError: The process is gone.
    """
    warm_up = await load(port, make, clips=clips, clients=clients, seconds=_WARM_UP_SHARE * seconds)
    samples: list[float] = []
    loading = asyncio.create_task(load(port, make, clips=clips, clients=clients, seconds=seconds))
    try:
        while not samples or not loading.done():
            samples.append(rss_mb(pid))
            await asyncio.wait([loading], timeout=sample_s)
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    return SoakFigures(clients, loading.result().failing_too(warm_up), tuple(samples))


def daemon_pid(log_file: Path) -> int:
    """The process id a daemon has announced in its log; the last one, if several have.

    Raises:
        StageError: None has.
    """
    try:
        lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        pids = [json.loads(line)["pid"] for line in lines if line.startswith('{"event": "listening"')]
        return int(pids[-1])
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise StageError(f"{log_file} names no process: {error}") from error


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MiB.

    Raises:
        StageError: It is gone, or this system has no /proc.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        (told,) = (line for line in lines if line.startswith("VmRSS:"))
        return int(told.split()[1]) / _MIB
    except (OSError, ValueError) as error:
        raise StageError(f"the memory of process {pid} cannot be read: {error}") from error
