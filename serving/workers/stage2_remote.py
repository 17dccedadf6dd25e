"""The remote engine: an OpenAI-compatible server somewhere else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar

from pipeline_ver2.config import Stage2Config
from pipeline_ver2.errors import BadReply, ConfigError, EngineFailed, StageUnreachable
from serving.workers.chat import Chat
from serving.workers.stage2_engine import Engine, EngineName, Watch
from serving.workers.stage2_openai import OpenAIServer


class OpenAIEngine(Engine):
    """What remote and vllm share: each chat goes to `server`, once; `in_flight` are there now."""

    def __init__(self, model: str, labels: tuple[str, ...] | None) -> None:
        super().__init__(model, labels)
        self.server: OpenAIServer | None = None
        self.in_flight = 0

    def ready_server(self) -> OpenAIServer:
        """The server to send to now.

        Raises:
            StageUnreachable: There is none yet.
        """
        if self.server is None:
            raise StageUnreachable(f"the {self.name} engine is not up yet", retry_after_s=2)
        return self.server

    async def complete(self, chat: Chat, watch: Watch) -> dict[str, Any]:
        """Send once, return what came back."""
        server = self.ready_server()
        with self._sending():
            completion = await server.complete(chat.body)
        self.was_alive()
        return completion

    async def stream(self, chat: Chat, watch: Watch) -> AsyncGenerator[dict[str, Any], None]:
        """Send once, pass the chunks on."""
        server = self.ready_server()
        with self._sending():
            async with aclosing(server.stream(chat.body)) as chunks:
                async for chunk in chunks:
                    self.was_alive()
                    yield chunk

    @contextmanager
    def _sending(self) -> Iterator[None]:
        self.in_flight += 1
        try:
            yield
        except EngineFailed:
            self.was_hurt("failure")
            raise
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        """Drop the connections."""
        server, self.server = self.server, None
        if server is not None:
            await server.close()


class RemoteEngine(OpenAIEngine):
    """Sends to `stage2.remote_url`; serves the model named in `stage2.model`, else the first one listed there."""

    name: ClassVar[EngineName] = "remote"

    def __init__(self, settings: Stage2Config) -> None:
        super().__init__(settings.model or "", None)
        if settings.remote_url is None:
            raise ConfigError("stage2.remote_url: missing")
        self._url = settings.remote_url
        self._timeout_s = settings.timeout_s

    async def start(self) -> None:
        """Open the client; the server may come later."""
        self.server = OpenAIServer(self._url, timeout_s=self._timeout_s)

    async def served_model(self) -> str:
        """The configured name, else the first model the server lists; asked for once."""
        if not self.model:
            listed = await self.ready_server().models()
            if not listed:
                raise BadReply(f"{self._url} lists no model")
            self.model = listed[0]["id"]
        return self.model

    async def probe(self, chat: Chat) -> None:
        """Ask the server for its health first: that says more clearly what is wrong. Then for a real answer."""
        await self.ready_server().healthy()
        await super().probe(chat)

    def state(self) -> Mapping[str, Any]:
        """Where the server is."""
        return {"remote_url": self._url}
