"""Runs a command so that it never outlives its parent: `python child_guard.py GRACE_S COMMAND…`.

The parent holds the other end of standard input; when it closes, be it by kill -9, the command's whole process group is
told to end, and killed after the grace time. Run by its path, with nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1
_EXIT_NOT_RUN = 127


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code, 127 if it cannot be started, 128 + n for signal n."""
    grace_s, *command = arguments
    stopping = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
        return _EXIT_NOT_RUN
    threading.Thread(target=_wait_for_end_of_input, args=(stopping,), daemon=True).start()
    threading.Thread(target=_stop, args=(child, stopping, float(grace_s)), daemon=True).start()
    code = child.wait()
    _signal_group(child, signal.SIGKILL)  # whatever it has left behind
    return code if code >= 0 else 128 - code


def _wait_for_end_of_input(stopping: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    stopping.set()


def _stop(child: subprocess.Popen[bytes], stopping: threading.Event, grace_s: float) -> None:
    stopping.wait()
    _signal_group(child, signal.SIGTERM)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        _signal_group(child, signal.SIGKILL)


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _die_with_parent() -> None:
    """In the child, before it becomes the command: a killed guard takes it along."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
