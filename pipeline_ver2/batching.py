"""Batches out of what comes one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from enum import Enum
from typing import TypeVar

T = TypeVar("T")


class _End(Enum):
    END = 0


async def batched(items: AsyncIterator[T], size: int, wait_s: float | None) -> AsyncGenerator[list[T], None]:
    """Put items together, `size` at a time; what is left at the end comes as a smaller batch.

    Args:
        items: Where they come from. It is not asked again while it is at work, nor while a batch is taken.
        size: Most items of a batch.
        wait_s: How long after its first item a batch waits for more; None waits until it is full.
    """
    clock = asyncio.get_running_loop().time
    batch: list[T] = []
    due_at = 0.0
    coming: asyncio.Task[T | _End] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(_next(items))
            timeout = max(0.0, due_at - clock()) if batch and wait_s is not None else None
            await asyncio.wait([coming], timeout=timeout)
            late = not coming.done()
            if not late:
                item = coming.result()
                coming = None
                if isinstance(item, _End):
                    break
                due_at = due_at if batch else clock() + (wait_s or 0.0)
                batch.append(item)
            if late or len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait([coming])


async def _next(items: AsyncIterator[T]) -> T | _End:
    return await anext(items, _End.END)
