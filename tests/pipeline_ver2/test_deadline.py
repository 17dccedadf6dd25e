"""When an answer must be there to be of use."""

from __future__ import annotations

import pytest

from pipeline_ver2 import wire
from pipeline_ver2.deadline import Deadline, headers_of
from pipeline_ver2.errors import DeadlineShed


def test_without_a_deadline_there_is_no_header() -> None:
    """Work of files is not urgent."""
    assert headers_of(None) == {}


def test_the_header_tells_what_is_left() -> None:
    """In milliseconds, less with every look."""
    told = int(headers_of(Deadline.within(60))[wire.DEADLINE_HEADER])
    assert 30_000 < told <= 60_000


@pytest.mark.parametrize("left_s", [0, -3])
def test_what_is_too_late_is_not_sent(left_s: float) -> None:
    """A deadline that is over raises what the scheduler would have said."""
    with pytest.raises(DeadlineShed, match="before it was sent"):
        headers_of(Deadline.within(left_s))
