"""Work that those who want it at the same time share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class SharedTask:
    """Runs `work` for whoever joins; it goes on without those who leave, and only starts anew once it has ended."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Wait for the work at hand, or begin it; raises what it raises."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
            self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        await asyncio.shield(self._task)

    async def close(self) -> None:
        """Stop what is at work."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
