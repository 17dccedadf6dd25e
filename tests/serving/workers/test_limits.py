"""Fixed and adaptive limits."""

from __future__ import annotations

import pytest

from pipeline_ver2.config import LimitRange
from serving.workers.limits import AdaptiveLimit, FixedLimit, Limit, build_limit

WINDOW = 16
REST_S = 3600.0


class Driven:
    """A limit that is told of answers; `latency_s` of one is a function of the value."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.now = 0.0

    def answer(self, latency_s: float, windows: int = 1, *, running: int | None = None) -> int:
        """Windows of answers, all begun after the last; returns the value after them."""
        for _ in range(windows):
            for _ in range(max(WINDOW, 2 * self.limit.value)):
                self.limit.began(self.limit.value if running is None else running)
                self.now += latency_s
                self.limit.answered(latency_s, self.now)
        return self.limit.value


def test_the_setting_chooses() -> None:
    """A number is fixed, a range adapts and starts at its lower end."""
    assert isinstance(build_limit(3), FixedLimit)
    assert build_limit(3).value == 3
    adaptive = build_limit(LimitRange(min=2, max=8))
    assert isinstance(adaptive, AdaptiveLimit)
    assert adaptive.value == 2


def test_a_fixed_limit_falls_only_when_memory_runs_out() -> None:
    """By one each time, never below one; neither latency nor pressure moves it."""
    driven = Driven(FixedLimit(3))
    assert driven.answer(1.0, 3) == 3
    assert driven.answer(9.0, 3) == 3
    driven.limit.under_pressure(driven.now)
    assert driven.limit.value == 3
    for expected in (2, 1, 1):
        driven.limit.out_of_memory(driven.now)
        assert driven.limit.value == expected


def test_it_rises_while_latency_stays_at_its_floor() -> None:
    """By one a window, to the upper end and no further."""
    driven = Driven(AdaptiveLimit(1, 4))
    assert [driven.answer(1.0) for _ in range(5)] == [2, 3, 4, 4, 4]


def test_it_does_not_rise_unused() -> None:
    """Two at a time say nothing about three."""
    driven = Driven(AdaptiveLimit(1, 8))
    driven.answer(1.0, 2)
    assert driven.limit.value == 3
    assert driven.answer(1.0, 10, running=2) == 3


def test_it_falls_to_what_the_engine_really_works_on() -> None:
    """Half of the latency is queue: half of them are queueing. Then it stays for some windows."""
    driven = Driven(AdaptiveLimit(1, 8))
    driven.answer(1.0, 7)
    assert driven.answer(2.0) == 4
    assert driven.answer(1.0, 10) == 4
    assert driven.answer(1.0) == 5


def test_a_little_too_slow_must_be_seen_twice() -> None:
    """One window may be chance."""
    driven = Driven(AdaptiveLimit(1, 5))
    driven.answer(1.0, 4)
    assert driven.answer(1.25) == 5
    assert driven.answer(1.0) == 5
    assert driven.answer(1.25) == 5
    assert driven.answer(1.25) == 4


def test_one_stray_latency_decides_nothing() -> None:
    """A minute among seconds is no climb."""
    driven = Driven(AdaptiveLimit(1, 3))
    driven.answer(1.0, 2)
    driven.limit.began(3)
    driven.now += 60
    driven.limit.answered(60, driven.now)
    assert driven.answer(1.0) == 3


def test_an_engine_that_has_become_slower_gets_a_new_floor() -> None:
    """The value falls to its lower end, where the floor is measured, and climbs again."""
    driven = Driven(AdaptiveLimit(1, 4))
    driven.answer(1.0, 10)
    driven.answer(3.0, 5)
    assert driven.limit.value == 1
    assert driven.answer(3.0, 40) == 4


def test_the_floor_is_measured_anew_now_and_then() -> None:
    """A somewhat slower engine, at which the value neither rises nor falls, is found out at half the value."""
    driven = Driven(AdaptiveLimit(1, 8))
    driven.answer(1.0, 3)
    values = [driven.answer(1.12) for _ in range(140)]
    assert set(values[:50]) == {4}
    assert 2 in values
    assert values[-1] == 8


def test_what_began_under_another_value_tells_nothing() -> None:
    """Slow answers of before the cut do not cut again."""
    driven = Driven(AdaptiveLimit(1, 8))
    driven.answer(1.0, 7)
    driven.limit.out_of_memory(driven.now)
    for _ in range(100):
        driven.limit.answered(5.0, driven.now + 1)
    assert driven.limit.value == 7


def test_the_level_at_which_memory_ran_out_is_not_tried_again_soon() -> None:
    """Not within an hour, not within two more the second time; then one step."""
    driven = Driven(AdaptiveLimit(1, 8))
    driven.answer(1.0, 5)
    assert driven.limit.value == 6
    for rest_s in (REST_S, 2 * REST_S):
        driven.limit.began(6)
        driven.limit.out_of_memory(driven.now)
        until = driven.now + rest_s
        while driven.now < until - 100:
            assert driven.answer(1.0) <= 5
        while driven.limit.value < 6:
            assert driven.now < until + 1000
            driven.answer(1.0)
    assert driven.answer(1.0, 20) == 6


def test_memory_that_runs_out_below_the_value_counts_where_it_did() -> None:
    """Four at work were too many, whatever the value was; and the lower end holds."""
    driven = Driven(AdaptiveLimit(2, 8))
    driven.answer(1.0, 6)
    driven.limit.began(4)
    driven.limit.out_of_memory(driven.now)
    assert driven.limit.value == 3
    for _ in range(5):
        driven.limit.out_of_memory(driven.now)
    assert driven.limit.value == 2


@pytest.mark.parametrize(("value", "expected"), [(8, 6), (4, 3), (2, 1), (1, 1)])
def test_pressure_takes_a_quarter_once(value: int, expected: int) -> None:
    """Told again before anything that began since was answered, it is the same pressure; later it is another."""
    driven = Driven(AdaptiveLimit(1, 8))
    driven.answer(1.0, value - 1)
    for _ in range(5):
        driven.limit.under_pressure(driven.now)
    assert driven.limit.value == expected
    driven.limit.answered(1.0, driven.now + 1)
    driven.limit.under_pressure(driven.now + 1)
    assert driven.limit.value == max(1, expected - max(1, expected // 4))


def test_times_of_zero_do_no_harm() -> None:
    """An engine may answer at once."""
    assert Driven(AdaptiveLimit(1, 3)).answer(0.0, 5) == 3
