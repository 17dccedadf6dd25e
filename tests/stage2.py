"""Stage 2 for tests: its configuration, and an engine that does what a test says."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import ClassVar

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.errors import ZroactError
from serving.workers.chat import Chat, End, Piece
from serving.workers.stage2_engine import EngineName, LocalEngine, Watch

GOOD = '{"action":"walk","description":"One."}'


def stage2_config(folder: Path, **stage2: object) -> Config:
    """A configuration whose media root is `folder/media`; keywords are keys of the section."""
    section = {"engine": "emulated", "emulated.service_s": 0, "threads": 1, **stage2}
    overrides: dict[str, object] = {f"stage2.{key.replace('__', '.')}": value for key, value in section.items()}
    overrides |= {"paths.media_roots": [str(folder / "media")], "paths.work_dir": str(folder / "work")}
    return load_config(overrides=overrides, environ={})


class ScriptedEngine(LocalEngine):
    """Says one scripted item per request: a text, an error, or a list of pieces, errors and `HANG`.

    What happens inside is told in `events`, a queue for the test's thread.
    """

    name: ClassVar[EngineName] = "emulated"
    HANG: ClassVar[str] = "\x00hang"

    def __init__(self, *script: str | ZroactError | list[str | ZroactError], finish_reason: str = "stop") -> None:
        super().__init__("emulated", ("stand", "walk"))
        self.script = list(script)
        self.chats: list[Chat] = []
        self.events = queue.Queue[str]()
        self._finish_reason = finish_reason

    def next_event(self) -> str:
        """The next thing that happens inside."""
        return self.events.get(timeout=10)

    async def pieces(self, chat: Chat, watch: Watch) -> AsyncGenerator[Piece | End, None]:
        """Say the next item."""
        self.chats.append(chat)
        self.events.put("began")
        item = self.script.pop(0)
        try:
            for part in item if isinstance(item, list) else [item]:
                if isinstance(part, ZroactError):
                    raise part
                if part == self.HANG:
                    await asyncio.Event().wait()
                self.was_alive()
                yield Piece(part)
            yield End("length" if self._finish_reason == "length" else "stop", 3, 2)
        finally:
            self.events.put("ended")
