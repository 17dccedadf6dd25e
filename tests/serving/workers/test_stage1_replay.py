"""The memory of answered requests."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from serving.workers.stage1_replay import Replays, fingerprint_of

BODY = np.random.default_rng(0).bytes(200_000)


class Work:
    """Counts how often it is done; each answer is another number."""

    def __init__(self) -> None:
        self.times = 0
        self.begun_twice = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self) -> int:
        """Answer with the number of this time."""
        self.times += 1
        answer = self.times
        if answer == 2:
            self.begun_twice.set()
        await self.may_end.wait()
        return answer


@pytest.fixture
def work() -> Work:
    """The work."""
    return Work()


@pytest.mark.fault("O2")
async def test_the_same_request_is_answered_once(work: Work) -> None:
    """The same key and body are replayed; another body of that key, or another key, is other work."""
    replays = Replays[int](8)
    assert [await replays.run("a", BODY, work) for _ in range(3)] == [1, 1, 1]
    assert await replays.run("a", BODY[:-1] + b"\0", work) == 2
    assert await replays.run("b", BODY, work) == 3
    assert await replays.run("a", memoryview(bytearray(BODY)), work) == 1
    assert await replays.run("a", BODY[:-1] + b"\0", work) == 2


@pytest.mark.fault("O2")
async def test_the_same_request_joins_the_one_that_runs(work: Work) -> None:
    """Two at the same time are one piece of work, and another body of that key at the same time is its own."""
    replays = Replays[int](8)
    work.may_end.clear()
    tasks = [asyncio.create_task(replays.run("a", body, work)) for body in (BODY, BODY, BODY[1:])]
    await asyncio.wait_for(work.begun_twice.wait(), 20)
    work.may_end.set()
    assert await asyncio.gather(*tasks) == [1, 1, 2]


async def test_no_key_no_memory(work: Work) -> None:
    """Without a key everything is worked out."""
    replays = Replays[int](8)
    assert [await replays.run(None, BODY, work) for _ in range(2)] == [1, 2]


async def test_what_is_forgotten_is_worked_out_again(work: Work) -> None:
    """The memory is bounded; a key that comes back with another body never gets the forgotten one's answer."""
    replays = Replays[int](1)
    assert await replays.run("a", BODY, work) == 1
    assert await replays.run("b", BODY, work) == 2
    assert await replays.run("a", BODY[1:], work) == 3
    assert await replays.run("a", BODY, work) == 4


@pytest.mark.parametrize("place", [0, 65_535, 65_536, 131_071, 131_072, 199_999])
def test_every_byte_counts(place: int) -> None:
    """One bit of difference anywhere is another fingerprint."""
    for bit in (1, 128):
        changed = bytearray(BODY)
        changed[place] ^= bit
        assert fingerprint_of(bytes(changed)) != fingerprint_of(BODY)
    assert fingerprint_of(memoryview(bytearray(BODY))) == fingerprint_of(BODY)


def test_length_and_order_count() -> None:
    """Zeros more or less, exchanged blocks and exchanged words are other bodies; nothing at all is one too."""
    blocks = [BODY[:65_536], BODY[65_536:131_072]]
    bodies = [b"", b"\0", bytes(4), bytes(65_536), bytes(65_540), bytes(131_072), b"".join(blocks)]
    bodies += [b"".join(blocks[::-1]), BODY[4:8] + BODY[:4] + BODY[8:131_072]]
    assert len({fingerprint_of(body) for body in bodies}) == len(bodies)
