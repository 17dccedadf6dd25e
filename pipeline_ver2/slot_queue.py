"""Slots that wait for Stage 2."""

from __future__ import annotations

import asyncio

from pipeline_ver2.config_live import Policy
from pipeline_ver2.tracker import ReadySlot

Waiting = tuple[ReadySlot, float]
"""A slot, and when it became ready."""


class SlotQueue:
    """A bounded queue between one loop's tasks; its policy says what gives way when it is full."""

    def __init__(self, most: int, policy: Policy = "WAIT") -> None:
        self._queue: asyncio.Queue[Waiting | None] = asyncio.Queue(most)
        self._policy = policy

    async def put(self, slot: ReadySlot, since: float) -> ReadySlot | None:
        """Add a slot; returns the one that gave way, if one had to."""
        if self._policy != "WAIT" and self._queue.full():
            if self._policy == "DROP_LATEST":
                return slot
            oldest = self._queue.get_nowait()
            self._queue.put_nowait((slot, since))
            return None if oldest is None else oldest[0]
        await self._queue.put((slot, since))
        return None

    async def end(self, consumers: int) -> None:
        """No more come: each consumer gets its end marker, once what waits is taken."""
        for _ in range(consumers):
            await self._queue.put(None)

    async def get(self) -> Waiting | None:
        """The next slot, or an end marker."""
        return await self._queue.get()
