"""Slots that wait for Stage 2."""

from __future__ import annotations

import asyncio

import pytest

from pipeline_ver2.config_live import Policy
from pipeline_ver2.prompts import SlotImage
from pipeline_ver2.results import KeyframeRecord
from pipeline_ver2.slot_queue import SlotQueue
from pipeline_ver2.tracker import ReadySlot


def slot(index: int) -> ReadySlot:
    """A slot."""
    record = KeyframeRecord(key_index=11, time_s=0, state="ok")
    return ReadySlot(index, (SlotImage(b"", 0),), (record,))


async def drained(queue: SlotQueue) -> list[int]:
    """What one consumer gets until its end marker."""
    ending = asyncio.ensure_future(queue.end(1))
    found = []
    while (taken := await queue.get()) is not None:
        found.append(taken[0].index)
    await ending
    return found


@pytest.mark.parametrize(
    ("policy", "kept", "gave_way"),
    [("DROP_OLDEST", [2, 3], [None, None, 0, 1]), ("DROP_LATEST", [0, 1], [None, None, 2, 3])],
)
async def test_a_full_queue_lets_one_go(policy: Policy, kept: list[int], gave_way: list[int | None]) -> None:
    """Which one is the policy's; whoever puts is told, and never waits."""
    queue = SlotQueue(2, policy)
    gone = [await asyncio.wait_for(queue.put(slot(number), 0), 10) for number in range(4)]
    assert [None if each is None else each.index for each in gone] == gave_way
    assert await drained(queue) == kept


async def test_or_it_has_the_putter_wait() -> None:
    """Nothing is let go."""
    queue = SlotQueue(2)
    putting = asyncio.gather(*(queue.put(slot(number), 0) for number in range(4)))
    await asyncio.sleep(0)
    assert not putting.done()
    first, second = await queue.get(), await queue.get()
    assert first is not None
    assert second is not None
    assert await putting == [None] * 4
    assert await drained(queue) == [2, 3]
