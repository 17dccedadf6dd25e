"""The detector's thread: one piece of work at a time, and each result back in the event loop with one wake-up.

`ThreadPoolExecutor` does the same by way of two futures and their locks. Beside a run of some milliseconds, with cold
caches around it, that shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

T = TypeVar("T")

_Work = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class DetectorThread:
    """Starts with its first piece of work, and does not keep the process from ending."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="detector", daemon=True)
        self._closed = False

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have it done after what was started before. Cancelling the future leaves what runs to itself.

        Raises:
            RuntimeError: After `close`.
        """
        if self._closed:
            raise RuntimeError("the detector's thread takes no work after its shutdown")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._work.put((work, future))
        if self._thread.ident is None:
            self._thread.start()
        return future

    def close(self) -> None:
        """End after what runs, and cancel the rest. Does not wait."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._drop(self._work.get_nowait())
        self._work.put(None)

    @staticmethod
    def _drop(item: _Work | None) -> None:
        if item is not None:
            item[1].cancel()

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            work, future = item
            outcome = _Outcome.of(work)
            with contextlib.suppress(RuntimeError):  # the loop has been closed, nobody waits
                future.get_loop().call_soon_threadsafe(outcome.settle, future)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of a piece of work."""

    result: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, work: Callable[[], Any]) -> Self:
        """Do it."""
        try:
            return cls(result=work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
            return cls(error=error)

    def settle(self, future: asyncio.Future[Any]) -> None:
        """Tell whoever waits, if somebody still does."""
        if future.done():
            return
        if self.error is None:
            future.set_result(self.result)
        else:
            future.set_exception(self.error)
