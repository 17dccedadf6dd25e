"""The detector's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from serving.workers.stage1_thread import DetectorThread


@pytest.fixture
def thread() -> Iterator[DetectorThread]:
    """Closed at the end."""
    made = DetectorThread()
    yield made
    made.close()


async def test_work_is_done_in_one_thread_in_its_order(thread: DetectorThread) -> None:
    """All of it, one after the other, outside the event loop's thread."""
    seen: list[tuple[int, str]] = []
    work = [thread.start(lambda n=n: seen.append((n, threading.current_thread().name))) for n in range(5)]  # type: ignore[misc]
    await asyncio.gather(*work)
    assert seen == [(n, "detector") for n in range(5)]


async def test_results_and_errors_come_back(thread: DetectorThread) -> None:
    """To whoever waits; an error does not end the thread."""
    assert await thread.start(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await thread.start(lambda: 1 // 0)
    assert await thread.start(lambda: 8) == 8


async def test_a_cancelled_wait_leaves_the_thread_usable(thread: DetectorThread) -> None:
    """What runs ends by itself, and its result goes nowhere."""
    release = threading.Event()
    waiting = asyncio.ensure_future(thread.start(release.wait))
    waiting.cancel()
    release.set()
    assert await thread.start(lambda: 9) == 9
    assert waiting.cancelled()


async def test_closing_cancels_what_has_not_begun(thread: DetectorThread) -> None:
    """What runs is left to end; what waits is cancelled; nothing new is taken."""
    begun, release = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        release.wait()
        return "done"

    running, waiting = thread.start(work), thread.start(lambda: "never")
    await asyncio.to_thread(begun.wait)
    thread.close()
    release.set()
    assert await running == "done"
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="shutdown"):
        thread.start(lambda: 1)


def test_a_closed_loop_does_not_stop_the_thread(thread: DetectorThread) -> None:
    """A result for a loop that is gone is dropped; another loop is served."""
    release = threading.Event()

    async def leave() -> None:
        thread.start(release.wait)

    async def come() -> int:
        return await thread.start(lambda: 3)

    asyncio.run(leave())
    release.set()
    assert asyncio.run(come()) == 3
