"""The vllm engine: vLLM's own OpenAI server as a child on a loopback port, watched and started again on any end."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from pipeline_ver2.config import Stage2Config
from pipeline_ver2.errors import ConfigError, StageUnreachable, ZroactError
from serving.workers.guarded_child import GuardedChild
from serving.workers.stage2_engine import DEMO_LABELS, DEMO_MODEL, EngineName
from serving.workers.stage2_openai import OpenAIServer
from serving.workers.stage2_readiness import probe_chat
from serving.workers.stage2_remote import OpenAIEngine
from serving.workers.vllm_command import is_cpu_build, server_command, server_variables
from serving.workers.vllm_vitals import Reading, Vitals

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_LONGEST_DELAY_S = 30.0
_POLL_S = 0.25
_FAILED_CHECKS = 3
_VAIN_STARTS = 5
_METRICS_TIMEOUT_S = 2.0


class VllmEngine(OpenAIEngine):
    """Serves `stage2.model`, by default the embedded demo model.

    While the child is not up, requests raise `StageUnreachable`. A child that ends, does not come up within
    `stage2.start_timeout_s`, answers nothing three checks in a row, or has work and gets on with none of it for
    `stage2.timeout_s` is replaced, after a delay that doubles up to half a minute and starts afresh once a child has
    worked. If the first starts are all in vain, so would be the next ones.
    """

    name: ClassVar[EngineName] = "vllm"

    def __init__(
        self,
        settings: Stage2Config,
        *,
        check_every_s: float = 10,
        check_deadline_s: float = 30,
        look_every_s: float = 2,
        first_delay_s: float = 1,
    ) -> None:
        embedded = settings.model is None
        super().__init__(settings.model or DEMO_MODEL, DEMO_LABELS if embedded else None)
        self._settings = settings
        self._check_every_s = check_every_s
        self._check_deadline_s = check_deadline_s
        self._look_every_s = min(look_every_s, check_every_s)
        self._first_delay_s = first_delay_s
        self._python = settings.vllm_python or sys.executable
        self._command: list[str] = []
        self._variables: dict[str, str] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._phase = "starting"
        self._starts = 0
        self._has_been_up = asyncio.Event()
        self._guard_pid: int | None = None

    async def start(self) -> None:
        """Keep a child running from now on; return once the first is up.

        Raises:
            ConfigError: There is no such interpreter, or the first children ended without ever being up.
        """
        if shutil.which(self._python) is None:
            raise ConfigError(f"stage2.vllm_python: {self._python} is no program")
        on_cpu = await asyncio.to_thread(is_cpu_build, self._python)
        self._command = server_command(self._python, self.model, self._settings, on_cpu=on_cpu)
        self._variables = server_variables(self._settings, on_cpu=on_cpu)
        self._keeper = asyncio.create_task(self._keep_running())
        up = asyncio.create_task(self._has_been_up.wait())
        try:
            await asyncio.wait({self._keeper, up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if self._keeper.done():
            self._keeper.result()

    async def close(self) -> None:
        """End the child and everything it started."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await super().close()

    def ready_server(self) -> OpenAIServer:
        """The child's server, once it is up."""
        if self.server is None:
            raise StageUnreachable(f"vLLM is not up: {self._phase}", retry_after_s=2)
        return self.server

    def state(self) -> Mapping[str, Any]:
        """What the child is doing."""
        url = None if self.server is None else self.server.url
        return {
            "child": self._phase,
            "child_starts": self._starts,
            "child_guard_pid": self._guard_pid,
            "child_url": url,
        }

    async def metrics(self) -> str:
        """The child's own metrics; nothing while it has none to give."""
        server = self.server
        if server is not None:
            with suppress(TimeoutError, ZroactError):
                async with asyncio.timeout(_METRICS_TIMEOUT_S):
                    return await server.metrics()
        return ""

    async def _keep_running(self) -> None:
        delay_s = self._first_delay_s
        while True:
            has_worked, last_words = await self._run_child()
            if not self._has_been_up.is_set() and self._starts >= _VAIN_STARTS:
                raise ConfigError(
                    f"stage2.vllm_python: {self._python}: vLLM has been started {self._starts} times and never came "
                    f"up; the last one {last_words}"
                )
            self.was_hurt("restart")
            delay_s = self._first_delay_s if has_worked else min(2 * delay_s, _LONGEST_DELAY_S)
            self._phase = f"starting again in {delay_s:g} s"
            await asyncio.sleep(delay_s)

    async def _run_child(self) -> tuple[bool, str]:
        """Run one child to its end: `(whether it has ever been up, how it ended and what it said)`."""
        port = _free_port()
        self._phase, self._starts = "starting", self._starts + 1
        try:
            command = [*self._command, "--host", _HOST, "--port", str(port)]
            child = await GuardedChild.start(command, "vllm", variables=self._variables)
        except OSError as error:
            logger.warning("vLLM could not be started: %s", error)
            return False, f"could not be started: {error}"
        self._guard_pid = child.guard_pid
        server = OpenAIServer(f"http://{_HOST}:{port}", timeout_s=self._settings.timeout_s)
        tasks = asyncio.create_task(_ended(child)), asyncio.create_task(self._watch(server))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            how = " and ".join(str(task.exception() or task.result()) for task in done)
            logger.error("vLLM %s", how)
            return self.server is not None, f"{how}: {child.last_words() or 'it wrote nothing'}"
        finally:
            self.server, self._guard_pid = None, None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await child.stop()
            await server.close()

    async def _watch(self, server: OpenAIServer) -> str:
        """Wait until the child is up, then until it no longer does its work; say what was wrong."""
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                while not await _is_healthy(server):  # noqa: ASYNC110 - another process has no event to wait for
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return f"was not up within {self._settings.start_timeout_s:g} s (stage2.start_timeout_s)"
        self.server, self._phase = server, "up"
        self._has_been_up.set()
        failed, checked_at = 0, time.monotonic()
        vitals = Vitals(checked_at)
        while failed < _FAILED_CHECKS:
            await asyncio.sleep(self._look_every_s)
            await self._look(server, vitals)
            if vitals.stalled_s(time.monotonic()) > self._settings.timeout_s:
                return f"has had work for {self._settings.timeout_s:g} s (stage2.timeout_s) and got on with none of it"
            if time.monotonic() - checked_at >= self._check_every_s:
                failed = 0 if await self._answers() else failed + 1
                checked_at = time.monotonic()
        return f"gave no answer to {failed} checks in a row"

    async def _look(self, server: OpenAIServer, vitals: Vitals) -> None:
        """Read its metrics, tell what they mean."""
        text = await self.metrics()
        vitals.note(Reading.of(text) if text else None, has_work=self.in_flight > 0, now=time.monotonic())
        if vitals.has_moved:
            self.was_alive()
        if vitals.is_pressed:
            self.was_hurt("memory_pressure")

    async def _answers(self) -> bool:
        if self.alive_at is not None and time.monotonic() - self.alive_at < self._check_every_s:
            return True
        with suppress(TimeoutError, ZroactError):
            async with asyncio.timeout(self._check_deadline_s):
                await self.probe(await asyncio.to_thread(probe_chat, self.model))
                return True
        return False


async def _ended(child: GuardedChild) -> str:
    return f"ended with exit code {await child.wait()}"


async def _is_healthy(server: OpenAIServer) -> bool:
    with suppress(ZroactError):
        await server.healthy()
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
    return port
