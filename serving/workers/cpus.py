"""How many CPUs the process may use: those it may run on, and no more than its container's share of time."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def usable_cpus(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """The size for pools of threads that compute; 1 at least.

    More threads than a container's quota pays for are stopped together whenever it is spent.
    """
    allowed = len(os.sched_getaffinity(0))
    return max(1, min([allowed, *(math.ceil(quota) for quota in _quotas(cgroups, own))]))


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """CPUs' worth of time, of the process's control group and those around it, of either version of the interface.

    See `cpu.max` in the kernel's Documentation/admin-guide/cgroup-v2.rst, and sched-bwc.rst for version 1.
    """
    for folder in _groups(cgroups, own):
        with suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            yield float(quota) / float(period)  # "max" is no number
        with suppress(OSError, ValueError):
            spent, length = (float((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if spent > 0:  # -1: no limit
                yield spent / length


def _groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """Folders that may hold a quota: in a container only the roots are to be seen, outside of one the whole path."""
    lines = own.read_text().splitlines() if own.exists() else []
    for _, controllers, name in (line.split(":", 2) for line in lines):
        if not controllers or "cpu" in controllers.split(","):
            root = cgroups / controllers if controllers else cgroups
            folder = root / name.lstrip("/")
            yield from (each for each in (folder, *folder.parents) if each == root or root in each.parents)
