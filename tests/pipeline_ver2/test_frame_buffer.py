"""Between the thread that reads a live source and the one that makes clips of its frames."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import av
import pytest

from pipeline_ver2.config_live import Policy
from pipeline_ver2.errors import SourceLost
from pipeline_ver2.frame_buffer import FrameBuffer, Item, LiveFrame
from pipeline_ver2.losses import Losses
from pipeline_ver2.results import GapRecord

PICTURE = av.VideoFrame(16, 16, "yuv420p")
GAP = GapRecord(index=0, start_s=1, reason="planted")


def frame(number: int) -> LiveFrame:
    """Frame `number`, at that many seconds."""
    return LiveFrame(PICTURE, Fraction(number), float(number))


def buffer_with(policy: Policy, most: int = 3) -> tuple[FrameBuffer, Losses]:
    """A buffer, and what counts its losses."""
    losses = Losses()
    return FrameBuffer(most, policy, losses), losses


def taken(buffer: FrameBuffer) -> list[tuple[int, bool]]:
    """The number of each frame that waits, and whether frames before it were lost."""
    found = []
    while isinstance(item := buffer.take(0)[0], LiveFrame):
        found.append((int(item.time), item.after_loss))
    return found


@pytest.mark.parametrize("policy", ["WAIT", "DROP_OLDEST", "DROP_LATEST"])
def test_what_has_room_comes_out_as_it_went_in(policy: Policy) -> None:
    """In order, gaps in their places, then the end again and again."""
    buffer, losses = buffer_with(policy)
    items: list[Item] = [frame(0), GAP, frame(1)]
    assert all(buffer.put(item) for item in items)
    buffer.finish()
    assert [buffer.take(0) for _ in range(5)] == [*((item, True) for item in items), (None, False), (None, False)]
    assert losses.as_dict() == {}


def test_the_oldest_gives_way() -> None:
    """The newest are there, and the first of them says that something is missing before it."""
    buffer, losses = buffer_with("DROP_OLDEST")
    for number in range(5):
        buffer.put(frame(number))
    assert taken(buffer) == [(2, True), (3, False), (4, False)]
    assert losses.as_dict() == {"frames": {"buffer_full": 2}}


def test_the_newcomer_gives_way() -> None:
    """The oldest are there, and the first that has room again says that something is missing before it."""
    buffer, losses = buffer_with("DROP_LATEST")
    for number in range(5):
        buffer.put(frame(number))
    buffer.take(0)
    buffer.put(frame(5))
    assert taken(buffer) == [(1, False), (2, False), (5, True)]
    assert losses.as_dict() == {"frames": {"buffer_full": 2}}


@pytest.mark.parametrize("policy", ["DROP_OLDEST", "DROP_LATEST"])
def test_a_gap_never_gives_way(policy: Policy) -> None:
    """However full it is."""
    buffer, _ = buffer_with(policy, most=1)
    for item in (GAP, frame(0), GAP, frame(1)):
        buffer.put(item)
    assert [buffer.take(0)[0] for _ in range(4)].count(GAP) == 2


def test_the_reader_waits_for_room() -> None:
    """Nothing is lost: a put returns once something was taken."""
    buffer, losses = buffer_with("WAIT", most=1)
    with ThreadPoolExecutor(1) as reader:
        puts = reader.submit(lambda: [buffer.put(frame(number)) for number in range(20)])
        numbers: list[int] = []
        while len(numbers) < 20:
            item, _ = buffer.take(10)
            assert isinstance(item, LiveFrame)
            numbers.append(int(item.time))
        assert puts.result(10) == [True] * 20
    assert numbers == list(range(20))
    assert losses.as_dict() == {}


def test_a_reader_that_waits_is_let_go() -> None:
    """Closing ends the wait; later frames are not taken."""
    buffer, _ = buffer_with("WAIT", most=1)
    buffer.put(frame(0))
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(buffer.put, frame(1))
        buffer.close()
        assert waiting.result(10) is False
    assert buffer.put(frame(2)) is False
    assert buffer.take(0) == (None, False)


def test_what_ended_the_source_comes_after_the_last_frame() -> None:
    """An error does not overtake the frames before it."""
    buffer, _ = buffer_with("WAIT")
    buffer.put(frame(0))
    buffer.finish(SourceLost("planted"))
    assert buffer.take(0) == (frame(0), True)
    for _ in range(2):
        with pytest.raises(SourceLost, match="planted"):
            buffer.take(0)
