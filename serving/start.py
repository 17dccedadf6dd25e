"""Where the script `zroact` begins: the command line is imported here, so that Ctrl-C meanwhile leaves no traceback."""

from __future__ import annotations

from pipeline_ver2.interrupts import leave_quietly


def main() -> None:
    """Entry point of the script."""
    leave_quietly()
    from serving.cli import main as command_line

    command_line()
