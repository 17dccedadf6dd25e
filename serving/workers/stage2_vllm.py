"""The vllm engine: vLLM's own OpenAI server as a child on a loopback port, watched and started again on any end."""

from __future__ import annotations

import asyncio
import json
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
from serving.workers.chat import MAX_IMAGES
from serving.workers.guarded_child import GuardedChild
from serving.workers.stage2_engine import DEMO_LABELS, DEMO_MODEL, DEMO_MODEL_FOLDER, EngineName
from serving.workers.stage2_openai import OpenAIServer
from serving.workers.stage2_readiness import probe_chat
from serving.workers.stage2_remote import OpenAIEngine

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 30.0
_POLL_S = 0.25
_FAILED_CHECKS = 3


class VllmEngine(OpenAIEngine):
    """Serves `stage2.model`, by default the embedded demo model.

    While the child is not up, requests raise `StageUnreachable`. A child that ends, does not come up within
    `stage2.start_timeout_s`, or answers nothing three checks in a row is replaced, after a delay that doubles up to
    half a minute and starts afresh once a child has worked.
    """

    name: ClassVar[EngineName] = "vllm"

    def __init__(self, settings: Stage2Config, *, check_every_s: float = 10, check_deadline_s: float = 30) -> None:
        embedded = settings.model is None
        super().__init__(settings.model or DEMO_MODEL, DEMO_LABELS if embedded else None)
        self._settings = settings
        self._check_every_s = check_every_s
        self._check_deadline_s = check_deadline_s
        self._python = settings.vllm_python or sys.executable
        self._keeper: asyncio.Task[None] | None = None
        self._phase = "starting"
        self._starts = 0
        self._guard_pid: int | None = None

    async def start(self) -> None:
        """Begin to keep a child running."""
        if shutil.which(self._python) is None:
            raise ConfigError(f"stage2.vllm_python: {self._python} is no program")
        self._keeper = asyncio.create_task(self._keep_running())

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
        return {"child": self._phase, "child_starts": self._starts, "child_guard_pid": self._guard_pid}

    def command(self, port: int) -> list[str]:
        """The child's command line. Options the user gives come last, so they win."""
        limit = self._settings.most_at_once
        return [
            *(self._python, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", self._settings.model or str(DEMO_MODEL_FOLDER)),
            *("--served-model-name", self.model),
            *("--host", _HOST, "--port", str(port)),
            *("--max-num-seqs", str(limit + 1)),  # one more for readiness, which must not wait behind long work
            *("--limit-mm-per-prompt", json.dumps({"image": MAX_IMAGES, "video": 0})),
            # No free whitespace in guided answers: a model cannot fill them with blanks.
            *("--structured-outputs-config", json.dumps({"backend": "guidance", "disable_any_whitespace": True})),
            *self._settings.vllm_args,
        ]

    async def _keep_running(self) -> None:
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                has_worked = await self._run_child()
            except OSError as error:
                logger.warning("vLLM could not be started: %s", error)
                has_worked = False
            self.was_hurt("restart")
            delay_s = _FIRST_DELAY_S if has_worked else min(2 * delay_s, _LONGEST_DELAY_S)
            self._phase = f"starting again in {delay_s:g} s"
            await asyncio.sleep(delay_s)

    async def _run_child(self) -> bool:
        """Run one child to its end; whether it has ever been up."""
        port = _free_port()
        self._phase, self._starts = "starting", self._starts + 1
        child = await GuardedChild.start(self.command(port), "vllm")
        self._guard_pid = child.guard_pid
        server = OpenAIServer(f"http://{_HOST}:{port}", timeout_s=self._settings.timeout_s)
        tasks = asyncio.create_task(_ended(child)), asyncio.create_task(self._watch(server))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    logger.error("vLLM: %s", task.result())
            return self.server is not None
        finally:
            self.server, self._guard_pid = None, None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.close()
            await child.stop()

    async def _watch(self, server: OpenAIServer) -> str:
        """Wait until the child is up, then until it no longer answers; say what was wrong."""
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                while not await _is_healthy(server):  # noqa: ASYNC110 - another process has no event to wait for
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return f"not up within {self._settings.start_timeout_s:g} s (stage2.start_timeout_s)"
        self.server, self._phase = server, "up"
        failed = 0
        while failed < _FAILED_CHECKS:
            await asyncio.sleep(self._check_every_s)
            failed = 0 if await self._answers() else failed + 1
        return f"no answer to {failed} checks in a row"

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
