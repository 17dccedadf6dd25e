"""The times of a live source's frames, whatever the camera's clock does."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pipeline_ver2.live_clock import LiveClock

STEP = Fraction(1, 30)


def connected() -> LiveClock:
    """A clock at the first connection, frames 1/30 s apart."""
    clock = LiveClock()
    clock.connect(STEP)
    return clock


def test_timestamps_count_from_the_first_frame() -> None:
    """Whatever they begin at, and however unevenly the frames come."""
    clock = connected()
    arrivals = [0.0, 0.5, 0.5, 0.51]
    times = [clock.place(1000 + number * STEP, arrived) for number, arrived in enumerate(arrivals)]
    assert times == [0, STEP, 2 * STEP, 3 * STEP]
    assert clock.jumps == 0


def test_frames_without_timestamps_have_the_time_they_came() -> None:
    """To the microsecond, and always later than the frame before."""
    clock = connected()
    times = [clock.place(None, arrived) for arrived in (5.0, 5.04, 5.04, 5.2)]
    assert times[:2] == [0, Fraction(4, 100)]
    assert times[2] is not None
    assert Fraction(4, 100) < times[2] < Fraction(1, 5)
    assert times[3] == Fraction(1, 5)


@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_frame_out_of_order_is_left_out(back: int) -> None:
    """And the next one in order is taken."""
    clock = connected()
    for number in range(5):
        clock.place(number * STEP, number / 30)
    assert clock.place((4 - back) * STEP, 5 / 30) is None
    assert clock.place(5 * STEP, 5 / 30) == 5 * STEP
    assert (clock.repeated, clock.jumps) == (1, 0)


@pytest.mark.parametrize("jump", [500, -500, Fraction(2**33, 90_000), -Fraction(2**33, 90_000), Fraction(5, 2)])
def test_a_jump_of_the_cameras_clock_is_no_jump_of_ours(jump: Fraction) -> None:
    """The time that passed here counts; then the timestamps do again."""
    clock = connected()
    clock.place(Fraction(7), 0.0)
    clock.place(7 + STEP, 1 / 30)
    after = clock.place(7 + STEP + jump, 3 / 30)
    assert after == pytest.approx(3 / 30, abs=1e-3)
    assert clock.place(7 + 2 * STEP + jump, 4 / 30) == after + STEP
    assert clock.jumps == 1


def test_silence_on_one_connection_is_time_that_passed() -> None:
    """A camera that stopped for a minute and goes on has not jumped."""
    clock = connected()
    clock.place(Fraction(0), 0.0)
    assert clock.place(Fraction(60), 59.0) == 60
    assert clock.jumps == 0


@pytest.mark.parametrize("stamp", [Fraction(0), Fraction(90_000), None])
def test_the_next_connection_goes_on_by_the_clock_here(stamp: Fraction | None) -> None:
    """Its timestamps may begin anywhere."""
    clock = connected()
    for number in range(30):
        clock.place(number * STEP, 100 + number / 30)
    clock.connect(Fraction(1, 25))
    assert clock.place(stamp, 112.5) == Fraction(25, 2)
    assert clock.jumps == 0


def test_times_grow_even_if_the_camera_runs_fast() -> None:
    """Its clock was ahead of ours when it was lost."""
    clock = connected()
    clock.place(Fraction(0), 0.0)
    clock.place(Fraction(2), 1.0)
    clock.connect(STEP)
    again = clock.place(Fraction(0), 1.5)
    assert again is not None
    assert again > 2
