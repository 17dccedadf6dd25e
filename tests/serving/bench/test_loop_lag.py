"""The event loop's lag, and the executor that causes it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from serving.bench.loop_lag import InlineExecutor, LoopLag, sampled_lag


async def test_inline_work_runs_in_the_loop_s_own_thread() -> None:
    """That is what decoding without an executor was."""
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(InlineExecutor(), threading.get_ident) == threading.get_ident()


async def test_inline_work_that_fails_tells_whoever_waits() -> None:
    """The error comes out of the future, as with any executor."""
    loop = asyncio.get_running_loop()
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(InlineExecutor(), lambda: 1 // 0)


def test_no_samples_give_no_figures() -> None:
    """A row that was not watched has nothing to say."""
    assert LoopLag().as_dict() == {}


def test_one_sample_is_all_figures() -> None:
    """Median, percentile and maximum of one sample are that sample, in milliseconds."""
    lag = LoopLag()
    lag.add(0.004)
    assert lag.as_dict() == {"p50_ms": 4.0, "p99_ms": 4.0, "max_ms": 4.0}


def test_a_blocked_loop_counts_for_all_who_would_have_come() -> None:
    """A lag of 12 ms holds up those who come 5 and 10 ms later, too: samples every 5 ms."""
    lag = LoopLag()
    lag.add(0.012)
    assert lag.samples == pytest.approx([0.012, 0.007, 0.002])


async def test_blocking_work_is_seen() -> None:
    """A loop blocked for 60 ms is 55 ms late at least for a task that slept 5 ms."""
    loop = asyncio.get_running_loop()
    never = threading.Event()
    async with sampled_lag() as lag:
        await asyncio.sleep(0)  # the sampler begins
        await loop.run_in_executor(InlineExecutor(), never.wait, 0.06)
        await asyncio.sleep(0.01)  # due after the sampler is
    assert lag.as_dict()["max_ms"] >= 54


async def test_the_sampler_ends_with_its_block() -> None:
    """No task is left behind, also when the block fails."""
    with pytest.raises(KeyError):
        async with sampled_lag():
            raise KeyError
    assert asyncio.all_tasks() == {asyncio.current_task()}
