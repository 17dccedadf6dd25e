"""Batches out of what comes one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from pipeline_ver2.batching import batched


async def numbers(count: int) -> AsyncIterator[int]:
    """So many, at once."""
    for number in range(count):
        yield number


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, [[0]]), (4, [[0, 1], [2, 3]]), (5, [[0, 1], [2, 3], [4]])]
)
@pytest.mark.parametrize("wait_s", [None, 60])
async def test_batches_are_full_but_for_the_last(count: int, expected: list[list[int]], wait_s: float | None) -> None:
    """Nothing is lost, nothing is told twice, whether or not there is a limit to waiting."""
    async with aclosing(batched(numbers(count), 2, wait_s)) as batches:
        assert [batch async for batch in batches] == expected


async def test_a_batch_waits_no_longer_than_it_may() -> None:
    """What there is goes on its way, and what comes after it is not lost."""
    go_on = asyncio.Event()

    async def slow() -> AsyncIterator[int]:
        yield 1
        await go_on.wait()
        yield 2

    async with aclosing(batched(slow(), 4, 0.01)) as batches:
        assert await anext(batches) == [1]
        go_on.set()
        assert await anext(batches) == [2]


async def test_without_a_limit_a_batch_waits_until_it_is_full() -> None:
    """A file is never cut into smaller batches than it must be."""
    go_on = asyncio.Event()

    async def slow() -> AsyncIterator[int]:
        yield 1
        go_on.set()
        await asyncio.sleep(0.05)
        yield 2

    async with aclosing(batched(slow(), 2, None)) as batches:
        assert await anext(batches) == [1, 2]
    assert go_on.is_set()


async def test_an_error_of_the_source_comes_through() -> None:
    """And nothing is left running."""

    async def broken() -> AsyncIterator[int]:
        yield 1
        raise OSError("planted")

    async with aclosing(batched(broken(), 2, 60)) as batches:
        with pytest.raises(OSError, match="planted"):
            await anext(batches)


async def test_cancelled_it_lets_go_of_the_source() -> None:
    """The wait for the next one is over too."""
    left = asyncio.Event()

    async def silent() -> AsyncIterator[int]:
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            left.set()

    async with aclosing(batched(silent(), 2, 60)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.wait_for(left.wait(), 10)
