"""How many CPUs the process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving.workers.cpus import usable_cpus

ALLOWED = len(os.sched_getaffinity(0))


def _group(tmp_path: Path, line: str, files: dict[str, str]) -> tuple[Path, Path]:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text(line)
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root, own


def test_without_control_groups_all_cpus_count(tmp_path: Path) -> None:
    """Those the process may run on."""
    assert usable_cpus(tmp_path / "none", tmp_path / "none") == ALLOWED
    assert 1 <= usable_cpus() <= ALLOWED


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, ALLOWED),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/pod/one\n", {"pod/cpu.max": "90000 100000\n", "pod/one/cpu.max": "max 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, ALLOWED),
        ("3:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "20000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 1),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, ALLOWED),
        ("0::/\n", {"cpu.max": "nonsense"}, ALLOWED),
    ],
)
def test_a_quota_counts(tmp_path: Path, line: str, files: dict[str, str], expected: int) -> None:
    """Of both versions of the interface, of an outer group as well; no quota and nonsense do not."""
    assert usable_cpus(*_group(tmp_path, line, files)) == expected
