"""Work that is shared."""

from __future__ import annotations

import asyncio

import pytest

from serving.workers.shared_task import SharedTask


class Work:
    """Counts how often it began and ended."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun = self.ended = 0
        self.error = error
        self.go_on = asyncio.Event()

    async def __call__(self) -> None:
        """Wait for leave."""
        self.begun += 1
        await self.go_on.wait()
        self.ended += 1
        if self.error is not None:
            raise self.error


async def test_those_who_come_at_the_same_time_share_it() -> None:
    """Who comes later begins it anew."""
    work = Work()
    shared = SharedTask(work)
    joined = [asyncio.create_task(shared.join()) for _ in range(3)]
    await asyncio.sleep(0)
    work.go_on.set()
    await asyncio.gather(*joined)
    assert work.begun == 1
    await shared.join()
    assert work.begun == 2


async def test_all_of_them_are_told_of_a_failure() -> None:
    """Each raises it."""
    work = Work(ValueError("no"))
    work.go_on.set()
    shared = SharedTask(work)
    ends = await asyncio.gather(shared.join(), shared.join(), return_exceptions=True)
    assert [str(end) for end in ends] == ["no", "no"]


async def test_it_goes_on_without_who_leaves_and_is_stopped_at_the_end() -> None:
    """A caller that is cancelled does not take it along; closing does."""
    work = Work()
    shared = SharedTask(work)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await shared.join()
    work.go_on.set()
    await shared.join()
    assert (work.begun, work.ended) == (1, 1)
    work.go_on.clear()
    left = asyncio.create_task(shared.join())
    await asyncio.sleep(0.01)
    await shared.close()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert (work.begun, work.ended) == (2, 1)
