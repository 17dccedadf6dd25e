"""Starts the stage daemons that are missing, waits until they are ready, watches them and stops them.

A stage that answers already is used as it is and never stopped from here. A started daemon lives in its own process
group, so that Ctrl-C reaches it only through us, and holds the read end of a pipe as its standard input: when this
process ends in any way, kill -9 included, the pipe closes and the daemon ends itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, Self, TypeVar

import aiohttp

from pipeline_ver2.config import Config, child_environment
from pipeline_ver2.errors import ConfigError, StageError, StageUnreachable
from pipeline_ver2.private_config import private_config_file, remove, sweep, write_effective_config
from pipeline_ver2.stage_probe import Address, Finding, StageName, address_of, find_stage

log = logging.getLogger(__name__)

STOP_GRACE_S = 16.0
"""Longer than a daemon takes that drains and releases what it owns, so that it is killed only if it hangs."""
MAX_RESTARTS = 5
RESTART_PAUSE_S = 0.25
STABLE_S = 60.0
"""A daemon that was ready for this long starts again with a clean record."""

_FIRST_POLL_S, _LONGEST_POLL_S = 0.05, 0.5
_REAP_S = 5.0
_STAND_BY_S = 1.0
_LOG_TAIL_BYTES = 8192
_REFUSED = 2  # the exit code of a daemon that cannot use its configuration, as of every command
_ERROR_MARK = "[ERROR] "

T = TypeVar("T")
DaemonCommand = Callable[[Address, Path], Sequence[str]]


def daemon_command(address: Address, config_file: Path) -> Sequence[str]:
    """The command line of a stage's daemon. `-P` keeps a `serving` folder of the current directory out of its way."""
    module = f"serving.workers.{address.stage}_server"
    place = ["--host", address.host, "--port", str(address.port)]
    return [sys.executable, "-P", "-m", module, "--config", str(config_file), *place, "--watch-stdin"]


@dataclass(slots=True)
class _Daemon:
    """One started daemon: its process, its process group (same id), and the pipe it watches."""

    address: Address
    log_file: Path
    process: asyncio.subprocess.Process
    lifeline: int | None
    log_start: int
    ready_at: float | None = None

    @property
    def was_stable(self) -> bool:
        """Whether it served long enough for its end to count as a first one."""
        return self.ready_at is not None and time.monotonic() - self.ready_at > STABLE_S

    def signal_group(self, number: signal.Signals) -> None:
        """Signal every process of the group that still exists."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def bury(self) -> None:
        """End whatever is left of the daemon's group and let go of the pipe; once, for process ids are used again."""
        if self.lifeline is not None:
            self.signal_group(signal.SIGKILL)
            os.close(self.lifeline)
            self.lifeline = None

    async def epitaph(self) -> str:
        """How it ended and its last words, for a message."""
        lines = await asyncio.to_thread(_last_lines, self.log_file, self.log_start)
        last = _last_words(lines, gave_up=(self.process.returncode or 0) > 0)
        return f"{_exit_text(self.process.returncode)}: {last or 'it wrote nothing'} (log: {self.log_file})"


class Supervisor:
    """Async context manager in which the stages are ready.

    Args:
        config: The whole configuration; started daemons get it in a private file.
        stages: Which stages are needed.
        spawn: Start a daemon where nobody listens on a loopback address; False only checks.
        log_dir: Folder for the daemons' output; None takes `<paths.work_dir>/logs`.
        command: How a daemon is started.
        stop_grace_s: How long started daemons may take to end before they are killed.

    Raises:
        ConfigError: On entry: a port taken by something else, an unusable URL, a daemon that refuses its configuration.
        StageUnreachable: On entry: nobody answers and none may be started, or readiness takes too long.
        StageError: On entry: a daemon died while starting.
    """

    def __init__(
        self,
        config: Config,
        *,
        stages: Sequence[StageName] = ("stage1", "stage2"),
        spawn: bool = True,
        log_dir: Path | None = None,
        command: DaemonCommand = daemon_command,
        stop_grace_s: float = STOP_GRACE_S,
    ) -> None:
        self._config = config
        self._addresses = [address_of(config, stage) for stage in stages]
        self._spawn_allowed = spawn
        work_dir = config.paths.work_dir.absolute()
        self._log_dir = log_dir or work_dir / "logs"
        self._config_file = private_config_file(work_dir)
        self._command = command
        self._stop_grace_s = stop_grace_s
        self._session: aiohttp.ClientSession | None = None
        self._daemons: dict[StageName, _Daemon] = {}
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def started(self) -> tuple[StageName, ...]:
        """The stages that run because we started them."""
        return tuple(self._daemons)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        try:
            # One after the other: on one GPU Stage 1 takes its memory first, and Stage 2 plans with the rest.
            for address in self._addresses:
                await self._bring_up(address)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def wait_failed(self) -> NoReturn:
        """Wait until a started daemon has died too often, which may be never.

        Raises:
            StageError: It has, or refuses to start again; with how it ended last.
        """
        if not self._watchers:
            await asyncio.Event().wait()
        done, _ = await asyncio.wait(self._watchers, return_when=asyncio.FIRST_COMPLETED)
        for watcher in done:
            watcher.result()
        raise StageError("a stage is not watched any more")

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what needs the stages; it is cancelled when `wait_failed` knows that one of them stays away.

        Raises:
            StageError: A started daemon has died too often.
        """
        task, failed = asyncio.ensure_future(work), asyncio.ensure_future(self.wait_failed())
        try:
            await asyncio.wait({task, failed}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else failed.result()
        finally:
            for each in (task, failed):
                each.cancel()
            await asyncio.wait({task, failed})

    async def close(self) -> None:
        """Stop what was started: ask, wait a bounded time, kill, reap. A cancellation meanwhile kills at once."""
        try:
            for watcher in self._watchers:
                watcher.cancel()
            await asyncio.gather(*self._watchers, return_exceptions=True)
            await self._end_daemons()
        finally:
            for daemon in self._daemons.values():
                daemon.bury()
            await self._reap()
            if self._session is not None:
                await self._session.close()
            await asyncio.to_thread(remove, self._config_file)

    async def _end_daemons(self) -> None:
        running = [daemon for daemon in self._daemons.values() if daemon.process.returncode is None]
        if not running:
            return
        for daemon in running:
            daemon.signal_group(signal.SIGTERM)
        ends = [asyncio.ensure_future(daemon.process.wait()) for daemon in running]
        try:
            _, late = await asyncio.wait(ends, timeout=self._stop_grace_s)
        finally:
            for end in ends:
                end.cancel()
        if late:
            log.warning("killed %d daemon(s) that did not end within %g s", len(late), self._stop_grace_s)

    async def _reap(self) -> None:
        ends = [asyncio.ensure_future(daemon.process.wait()) for daemon in self._daemons.values()]
        self._daemons.clear()
        if ends:
            await asyncio.wait(ends, timeout=_REAP_S)

    async def _bring_up(self, address: Address) -> None:
        found = await self._find(address)
        if found.state == "starting":
            log.info("%s at %s is not ready yet (%s)", address.title, address.url, found.detail)
            found = await self._wait_until_ready(address)
        if found.state == "ready":
            log.info("%s daemon active at %s (already running)", address.title, address.url)
            if self._spawn_allowed and address.is_local:
                self._watchers.append(asyncio.create_task(self._stand_by(address), name=f"stand by {address.stage}"))
        elif found.state == "foreign":
            raise ConfigError(f"{address.key}: {address.url} is taken by something else: {found.detail}")
        else:
            await self._start_first(address, found)

    async def _start_first(self, address: Address, found: Finding) -> None:
        if not (self._spawn_allowed and address.is_local):
            why = "starting daemons is switched off" if address.is_local else "it is not on this machine"
            raise StageUnreachable(f"{address.key}: nobody answers at {address.url} ({found.detail}), and {why}")
        await self._start(address)
        self._watchers.append(asyncio.create_task(self._watch(address), name=f"watch {address.stage}"))

    async def _find(self, address: Address) -> Finding:
        if self._session is None:
            raise RuntimeError("the supervisor is used outside its context")
        return await find_stage(self._session, address)

    async def _wait_until_ready(self, address: Address, daemon: _Daemon | None = None) -> Finding:
        """Ask until ready; for a stage that is not ours, until it is gone or turns out to be something else."""
        bound_s = self._config.stage2.start_timeout_s
        last, pause_s = Finding("absent"), _FIRST_POLL_S
        try:
            async with asyncio.timeout(bound_s):
                while True:
                    last = await self._find(address)
                    if daemon is not None and daemon.process.returncode is not None:
                        raise await _death_at_start(daemon)
                    if last.state == "ready" or (daemon is None and last.state != "starting"):
                        return last
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.5 * pause_s, _LONGEST_POLL_S)
        except TimeoutError as error:
            said = f"{address.key}: {address.title} at {address.url} is not ready after {bound_s:g} s ({last.detail})"
            raise StageUnreachable(said) from error

    async def _start(self, address: Address) -> None:
        """Start a daemon and wait until it is ready; it is ours to stop from its first moment."""
        log.info("starting the %s daemon at %s", address.title, address.url)
        begun = time.monotonic()
        daemon = self._daemons[address.stage] = await self._spawn(address)
        try:
            await self._wait_until_ready(address, daemon)
        except StageUnreachable:
            daemon.bury()
            raise
        daemon.ready_at = time.monotonic()
        log.info("%s daemon active at %s (ready in %.1f s)", address.title, address.url, daemon.ready_at - begun)

    async def _spawn(self, address: Address) -> _Daemon:
        await asyncio.to_thread(self._prepare_files)
        log_file = self._log_dir / f"{address.stage}.log"
        output = _open_log(log_file)
        log_start = output.tell()
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(address, self._config_file),
                stdin=read_end,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=child_environment(),
                start_new_session=True,
            )
        except BaseException as error:
            os.close(write_end)
            if isinstance(error, OSError):
                raise StageError(f"{address.title} could not be started: {error}") from error
            raise
        finally:
            os.close(read_end)
            output.close()
        return _Daemon(address, log_file, process, write_end, log_start)

    def _prepare_files(self) -> None:
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            sweep(self._config_file.parent)
            if not self._config_file.exists():
                write_effective_config(self._config, self._config_file)
        except OSError as error:
            raise ConfigError(f"paths.work_dir: {error.filename}: {error.strerror}") from error

    async def _stand_by(self, address: Address) -> None:
        """Start a stage that others ran on this machine when they stop it, and watch it from then on."""
        while True:
            while await _listens(address):  # noqa: ASYNC110 - another process has no event to wait for
                await asyncio.sleep(_STAND_BY_S)
            log.warning("%s at %s was stopped by whoever ran it; starting it", address.title, address.url)
            try:
                await self._start(address)
            except (StageError, ConfigError) as error:
                log.warning("%s could not be started: %s", address.title, error)
                await asyncio.sleep(_STAND_BY_S)
            else:
                return await self._watch(address)

    async def _watch(self, address: Address) -> None:
        """Restart a daemon whenever it dies, later each time.

        Raises:
            StageError: It died too often in a row.
        """
        deaths = 0
        while True:
            daemon = self._daemons[address.stage]
            await daemon.process.wait()
            daemon.bury()
            deaths = 1 if daemon.was_stable else deaths + 1
            end = await daemon.epitaph()
            if deaths > MAX_RESTARTS:
                raise StageError(f"{address.title} died {deaths} times in a row, the last time {end}")
            pause_s = RESTART_PAUSE_S * 2 ** (deaths - 1)
            log.warning("%s died, %s; restarting it in %g s", address.title, end, pause_s)
            await asyncio.sleep(pause_s)
            try:
                await self._start(address)
            except (StageError, ConfigError) as error:
                if self._daemons[address.stage].process.returncode == _REFUSED:
                    raise StageError(f"{address.title} died and cannot start again: {error}") from error
                log.warning("restart %d of %s failed: %s", deaths, address.title, error)


async def _listens(address: Address) -> bool:
    """Whether anybody accepts connections there; only a refusal says no."""
    try:
        async with asyncio.timeout(_STAND_BY_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.close()
    return True


def _open_log(file: Path) -> BinaryIO:
    try:
        return file.open("ab")
    except OSError as error:
        raise ConfigError(f"paths.work_dir: {error.filename}: {error.strerror}") from error


async def _death_at_start(daemon: _Daemon) -> StageError | ConfigError:
    daemon.bury()
    said = f"{daemon.address.title} ended while starting, {await daemon.epitaph()}"
    return ConfigError(said) if daemon.process.returncode == _REFUSED else StageError(said)


def _exit_text(code: int | None) -> str:
    if code is None:
        return "still running"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"with exit code {code}"


def _last_lines(log_file: Path, start: int) -> list[str]:
    """The last lines after byte `start` that are not blank, newest first; none if the log is gone."""
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in reversed(lines) if line.strip()]


def _last_words(lines: Sequence[str], *, gave_up: bool) -> str:
    """What a daemon said last; of one that gave up by itself, its last error, which its farewell may follow."""
    errors = (line.partition(_ERROR_MARK)[2] for line in lines if _ERROR_MARK in line)
    last = next(iter(lines), "")
    return next(errors, last) if gave_up else last
