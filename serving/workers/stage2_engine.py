"""What every engine of Stage 2 can do."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipeline_ver2.errors import EngineFailed
from serving.workers.chat import Chat, End, Piece, ReplyWriter, refuse_unsupported

logger = logging.getLogger(__name__)

DEMO_MODEL_FOLDER = Path(__file__).parents[1] / "demo" / "models" / "answerer"
DEMO_MODEL = "zroact-demo-answerer"
DEMO_LABELS = ("stand", "walk", "run", "wave", "jump", "fall")

EngineName = Literal["vllm", "transformers", "remote", "emulated"]
EngineEvent = Literal["out_of_memory", "memory_pressure", "failure", "restart"]


@dataclass(slots=True)
class Watch:
    """The engine's own stopwatch for one request: `waited_s` is the part of its time that was no work."""

    waited_s: float = 0.0


class Engine(ABC):
    """Answers checked chats. One request that is cancelled, or whose stream is closed, is no longer worked on.

    Attributes:
        model: The name clients ask for.
        labels: The labels of the embedded demo model, None for any other.
        on_event: Told of each event that metrics count.
        alive_at: When the engine last gave a sign of real work (`time.monotonic`), None before.
    """

    name: ClassVar[EngineName]

    def __init__(self, model: str, labels: tuple[str, ...] | None) -> None:
        self.model = model
        self.labels = labels
        self.on_event: Callable[[EngineEvent], None] = lambda event: logger.warning("engine event: %s", event)
        self.alive_at: float | None = None

    async def start(self) -> None:  # noqa: B027 - an engine without anything to load has nothing to add
        """Load, or begin to: requests meanwhile raise `StageUnreachable`.

        Raises:
            ConfigError: The engine can never work as configured.
        """

    async def close(self) -> None:  # noqa: B027 - as above
        """Release everything; requests at work have been cancelled before."""

    @abstractmethod
    async def complete(self, chat: Chat, watch: Watch) -> dict[str, Any]:
        """The whole answer as an OpenAI `chat.completion`.

        Raises:
            StageError: The engine is not ready, failed, or answered nonsense.
            RequestError: The engine cannot do what is asked.
        """

    @abstractmethod
    def stream(self, chat: Chat, watch: Watch) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as OpenAI chunks; raises as `complete`."""

    async def served_model(self) -> str:
        """The name clients ask for; raises as `complete` where it must be learnt first."""
        return self.model

    async def probe(self, chat: Chat) -> None:
        """Prove that the engine answers; raises as `complete`."""
        await self.complete(chat, Watch())

    def state(self) -> Mapping[str, Any]:
        """What `/health` adds about this engine."""
        return {}

    async def metrics(self) -> str:
        """What `/metrics` adds, as Prometheus text; soon, and never an error."""
        return ""

    def was_alive(self) -> None:
        """Note a sign of real work."""
        self.alive_at = time.monotonic()

    def was_hurt(self, event: EngineEvent) -> None:
        """Tell of an event, after which earlier signs of work prove nothing; memory pressure is itself one of work."""
        if event != "memory_pressure":
            self.alive_at = None
        self.on_event(event)


class LocalEngine(Engine):
    """An engine that generates in this process, piece by piece."""

    @abstractmethod
    def pieces(self, chat: Chat, watch: Watch) -> AsyncGenerator[Piece | End, None]:
        """Generate; the last item is the `End`. Raises as `complete`."""

    async def complete(self, chat: Chat, watch: Watch) -> dict[str, Any]:
        """Gather the pieces into one completion."""
        refuse_unsupported(chat, self.name)
        gathered: list[Piece] = []
        async with aclosing(self.pieces(chat, watch)) as pieces:
            async for piece in pieces:
                if isinstance(piece, End):
                    return ReplyWriter(chat, self.model).completion(gathered, piece)
                gathered.append(piece)
        raise EngineFailed("the engine stopped without an end")

    async def stream(self, chat: Chat, watch: Watch) -> AsyncGenerator[dict[str, Any], None]:
        """Write each piece as a chunk."""
        refuse_unsupported(chat, self.name)
        writer = ReplyWriter(chat, self.model)
        opened = False
        async with aclosing(self.pieces(chat, watch)) as pieces:
            async for piece in pieces:
                if not opened:
                    yield writer.opening()
                    opened = True
                for chunk in writer.closing(piece) if isinstance(piece, End) else [writer.delta(piece)]:
                    yield chunk
