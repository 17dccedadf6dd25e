"""Where the script `zroact` begins."""

from __future__ import annotations

import subprocess
import sys


def test_it_is_the_command_line() -> None:
    """Its arguments arrive there."""
    command = [sys.executable, "-c", "from serving.start import main; main()", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout.split()[0], ran.stderr) == (0, "zroact-stage2", "")
