"""The guard between a daemon and its child, as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GUARD = Path(__file__).parents[3] / "serving" / "workers" / "child_guard.py"


@contextmanager
def guarded(*command: str, grace_s: float = 5) -> Iterator[subprocess.Popen[bytes]]:
    """The guard of a command; its standard input is the parent's hold on it."""
    arguments = [sys.executable, "-I", str(GUARD), str(grace_s), *command]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as guard:
        try:
            yield guard
        finally:
            guard.kill()


def shell(script: str) -> tuple[str, ...]:
    """A command that runs a script."""
    return ("/bin/sh", "-c", script)


def first_pids(guard: subprocess.Popen[bytes]) -> list[int]:
    """The process ids that the command writes first."""
    assert guard.stdout is not None
    return [int(pid) for pid in guard.stdout.readline().split()]


def until(condition: Callable[[], bool]) -> None:
    """Poll what other processes do."""
    give_up_at = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_exit_code_is_passed_on(script: str, code: int) -> None:
    """Signals as shells tell them."""
    with guarded(*shell(script)) as guard:
        assert guard.wait(10) == code


def test_a_command_that_cannot_be_started_is_127() -> None:
    """With its name."""
    with guarded("/no/such/program") as guard:
        assert guard.wait(10) == 127
        assert guard.stderr is not None
        assert b"/no/such/program cannot be started" in guard.stderr.read()


@pytest.mark.fault("O5")
def test_the_end_of_the_parent_ends_the_whole_group() -> None:
    """The command and what it started."""
    with guarded(*shell("sleep 600 & echo $$ $!; wait")) as guard:
        pids = first_pids(guard)
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait(10)
        until(lambda: all(is_gone(pid) for pid in pids))


def test_what_does_not_end_in_time_is_killed() -> None:
    """After the grace time, not before."""
    with guarded(*shell("trap '' TERM; echo $$; while :; do sleep 0.05; done"), grace_s=0.3) as guard:
        (pid,) = first_pids(guard)
        began = time.monotonic()
        assert guard.stdin is not None
        guard.stdin.close()
        assert guard.wait(10) == 137
        assert time.monotonic() - began >= 0.3
        assert is_gone(pid)


def test_what_the_command_leaves_behind_is_cleaned_up() -> None:
    """When it ends by itself, too."""
    with guarded(*shell("sleep 600 & echo $!")) as guard:
        pids = first_pids(guard)
        assert guard.wait(10) == 0
        until(lambda: is_gone(pids[0]))


@pytest.mark.fault("O5")
def test_a_killed_guard_takes_the_command_along() -> None:
    """Even with kill -9."""
    with guarded(*shell("echo $$; exec sleep 600")) as guard:
        (pid,) = first_pids(guard)
        os.kill(guard.pid, signal.SIGKILL)
        until(lambda: is_gone(pid))


def test_an_interrupt_is_the_parents_business() -> None:
    """Control-C reaches the guard as well; the command goes on until the parent has drained."""
    with guarded(*shell("echo $$; exec sleep 600")) as guard:
        (pid,) = first_pids(guard)
        os.kill(guard.pid, signal.SIGINT)
        os.kill(guard.pid, signal.SIGTERM)
        assert guard.wait(10) == 143
        assert is_gone(pid)
