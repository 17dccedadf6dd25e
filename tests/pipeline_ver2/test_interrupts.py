"""Ctrl-C while a program is being imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Ctrl-C in the middle of the imports: when somebody asks for typer.
INTERRUPTED = """
import importlib.abc, os, runpy, signal, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["program", "clip.mp4"]
"""
PROGRAMS = {
    "zroact": "from serving.start import main; main()",
    "realtime_pipeline.py": "runpy.run_path('pipeline_ver2/realtime_pipeline.py', run_name='__main__')",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_ends_without_a_word(program: str) -> None:
    """With the exit code of an interruption and no traceback."""
    command = [sys.executable, "-c", INTERRUPTED + PROGRAMS[program]]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_once_at_work_it_is_told_in_order() -> None:
    """Inside `exit_codes` Ctrl-C is an error that is put into words; one that was ignored before stays ignored."""
    at_work = "from pipeline_ver2.interrupts import *; leave_quietly(); import signal, os"
    body = "from pipeline_ver2.command import exit_codes\nwith exit_codes(): os.kill(os.getpid(), signal.SIGINT)"
    ran = subprocess.run(
        [sys.executable, "-c", f"{at_work}\n{body}"], capture_output=True, text=True, check=False, timeout=60
    )
    assert "interrupted; partial results are kept" in ran.stderr
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    left = f"{ignored}; {at_work}; raise_again(); assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    assert subprocess.run([sys.executable, "-c", left], check=False, timeout=60).returncode == 0
