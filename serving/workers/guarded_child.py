"""A child process of a daemon that never outlives it, with its output in the daemon's log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pipeline_ver2.config import child_environment

logger = logging.getLogger(__name__)

_GUARD = Path(__file__).with_name("child_guard.py")
_GRACE_S = 5.0
_MAX_LINE = 2000
_KEPT_LINES = 200
_NAMED_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception): .*")


class GuardedChild:
    """A command under `child_guard`, in its own process group."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._log = asyncio.create_task(self._pass_on_output(name))

    @classmethod
    async def start(cls, command: Sequence[str], name: str, *, variables: Mapping[str, str] | None = None) -> Self:
        """Start the command; `name` goes before each of its log lines, `variables` join its environment."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(_GUARD), str(_GRACE_S), *command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
            env=child_environment(variables),
        )
        return cls(process, name)

    @property
    def guard_pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the command's end, return its exit code. Its output has been logged then."""
        code = await self._process.wait()
        await asyncio.wait({self._log}, timeout=_GRACE_S)
        return code

    def last_words(self) -> str:
        """The first error that its last lines name, for later ones follow from it; else its last line."""
        named = (found[0] for line in self._last_lines if (found := _NAMED_ERROR.search(line)))
        return next(named, self._last_lines[-1] if self._last_lines else "")

    async def stop(self) -> None:
        """End the command and everything it started, within the grace time."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(2 * _GRACE_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            self._log.cancel()
            await asyncio.gather(self._log, return_exceptions=True)

    async def _pass_on_output(self, name: str) -> None:
        output, line = self._process.stdout, b""
        while output is not None and (part := await output.read(4096)):
            *lines, line = (line + part).split(b"\n")
            line = line[:_MAX_LINE]
            for each in lines:
                self._take(name, each[:_MAX_LINE].decode(errors="replace"))
        if line:
            self._take(name, line.decode(errors="replace"))

    def _take(self, name: str, line: str) -> None:
        logger.info("%s: %s", name, line)
        if line.strip():
            self._last_lines.append(line.strip())
