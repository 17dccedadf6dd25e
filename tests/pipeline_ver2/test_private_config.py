"""Private configuration files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pipeline_ver2.config import load_config
from pipeline_ver2.private_config import private_config_file, remove, sweep, write_effective_config


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Only this user can read it; removing it twice is no error."""
    config, file = load_config(None, {"stage2.limit": 3}, environ={}), private_config_file(tmp_path / "work")
    write_effective_config(config, file)
    assert load_config(file, environ={}).stage2.limit == 3
    assert file.stat().st_mode & 0o777 == 0o600
    remove(file)
    remove(file)
    assert not file.exists()


def test_files_of_the_dead_are_swept_up(tmp_path: Path) -> None:
    """Those of processes that live stay, and so does whatever else lies there."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone = [tmp_path / f"config-{dead.pid}-0123abcd.json", tmp_path / "config-99999999999999999999-0123abcd.json"]
    kept = [
        private_config_file(tmp_path),
        tmp_path / "config-1-0123abcd.json",
        tmp_path / f"config-{dead.pid}-mine.json",
    ]
    for file in (*gone, *kept):
        file.touch()
    assert private_config_file(tmp_path).name.startswith(f"config-{os.getpid()}-")
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    sweep(tmp_path / "not there")
