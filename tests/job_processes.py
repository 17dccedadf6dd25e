"""Processes that were started by a process, and which of them run jobs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children_of(process: int) -> list[int]:
    """The processes a process has started and not yet buried, whichever of its threads did."""
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in thread.read_text().split()]
    return found


def job_processes_of(process: int) -> list[int]:
    """Those of its children that run jobs."""
    found: list[int] = []
    for child in children_of(process):
        with suppress(OSError):
            if b"serving.job_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found
