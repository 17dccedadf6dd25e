"""How late the event loop is, and an executor that makes it late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")

_INTERVAL_S = 0.005


class InlineExecutor(Executor):
    """Does the work at once, in the thread that asks: blocking work asked for in the event loop blocks the loop."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do it; the future returned is done."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever asks the future
            future.set_exception(error)
        return future


@dataclass(slots=True)
class LoopLag:
    """Samples of how much later than asked the loop woke a task, in seconds."""

    samples: list[float] = field(default_factory=list)

    def add(self, lag_s: float) -> None:
        """Take one observation, and those that could not be made while the loop was away.

        A loop blocked for 100 ms delays whatever comes in these 100 ms, not only the one task that measures.
        """
        self.samples.append(lag_s)
        while (lag_s := lag_s - _INTERVAL_S) > 0:
            self.samples.append(lag_s)

    def as_dict(self) -> dict[str, float]:
        """Median, 99th percentile and maximum, milliseconds; empty without samples."""
        if not self.samples:
            return {}
        p50, p99 = np.percentile(self.samples, [50, 99])
        figures = {"p50_ms": p50, "p99_ms": p99, "max_ms": max(self.samples)}
        return {name: round(float(value) * 1e3, 2) for name, value in figures.items()}


@asynccontextmanager
async def sampled_lag() -> AsyncIterator[LoopLag]:
    """Sample the running loop for the time of the `async with`."""
    lag = LoopLag()
    sampler = asyncio.create_task(_sample(lag), name="loop lag")
    try:
        yield lag
    finally:
        sampler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampler


async def _sample(lag: LoopLag) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _INTERVAL_S
        await asyncio.sleep(_INTERVAL_S)
        lag.add(max(0.0, loop.time() - due))
