"""The estimate of how long work takes."""

from __future__ import annotations

import random

import pytest

from serving.workers.service_time import ServiceTime


def seen(*seconds: float) -> ServiceTime:
    """An estimate after these."""
    service = ServiceTime()
    for each in seconds:
        service.add(each)
    return service


def test_nothing_is_known_before_the_first() -> None:
    """Zero everywhere: nobody is refused for a guess."""
    service = seen()
    assert (service.mean_s, service.needed_s, service.least_s) == (0, 0, 0)


def test_equal_times_are_known_exactly() -> None:
    """From the first on, with nothing added for safety."""
    for count in (1, 2, 300):
        service = seen(*[2.07] * count)
        assert service.mean_s == pytest.approx(2.07, abs=1e-9)
        assert service.needed_s == pytest.approx(2.07, abs=1e-9)
        assert service.least_s == 2.07


def test_what_varies_needs_more_than_its_mean_and_no_more_than_its_longest() -> None:
    """Fewer than one in a hundred of even times takes longer than was said to be needed before it."""
    chance, service, longer = random.Random(1), ServiceTime(), 0
    for number in range(4000):
        seconds = chance.uniform(1.6, 2.4)
        longer += number > 128 and seconds > service.needed_s
        service.add(seconds)
    assert service.mean_s == pytest.approx(2, abs=0.2)
    assert service.mean_s < service.needed_s <= 2.4
    assert longer < 40


def test_it_follows_a_change() -> None:
    """Up within a few, down as well, and one stray does not stay."""
    service = seen(*[2.0] * 50, *[4.0] * 10)
    assert service.mean_s > 3.4
    for _ in range(60):
        service.add(2.0)
    assert service.needed_s < 2.1
    assert seen(*[2.0] * 50, 60.0, *[2.0] * 60).needed_s < 2.1
