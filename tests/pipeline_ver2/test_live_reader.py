"""The thread that keeps a live source open."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pipeline_ver2.config_live import LiveConfig, Reconnect
from pipeline_ver2.errors import SourceLost
from pipeline_ver2.frame_buffer import FrameBuffer, LiveFrame
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.live_reader import Backoff, LiveReader
from pipeline_ver2.losses import Losses
from pipeline_ver2.results import GapRecord
from tests.live_camera import Camera, served, transport_stream
from tests.pipeline_ver2.fake_stage import until

QUICK = LiveConfig(open_timeout_s=5, read_timeout_s=5, reconnect=Reconnect(first_wait_s=0.02, max_wait_s=0.1))


class Reading:
    """A reader whose items are taken as they come."""

    def __init__(self, address: str, *, open_within_s: float = 10) -> None:
        self.buffer = FrameBuffer(10_000, "WAIT", Losses())
        self.reader = LiveReader(LiveSource(address), QUICK, self.buffer, time.monotonic, open_within_s=open_within_s)
        self.frames: list[LiveFrame] = []
        self.gaps: list[GapRecord] = []

    def drain(self) -> None:
        """Take what there is."""
        while (item := self.buffer.take(0)[0]) is not None:
            if isinstance(item, LiveFrame):
                self.frames.append(item)
            else:
                self.gaps.append(item)

    async def until(self, condition: Callable[[], object]) -> None:
        """Take what comes until it is so."""

        def so() -> object:
            self.drain()
            return condition()

        await until(so)


@asynccontextmanager
async def reading(camera: Camera, *, address: str | None = None) -> AsyncIterator[Reading]:
    """A reader of the camera."""
    async with served(camera):
        found = Reading(address or camera.url)
        found.reader.start()
        try:
            yield found
        finally:
            assert await asyncio.to_thread(found.reader.stop, 10)


def test_waits_double_up_to_the_longest() -> None:
    """And begin anew once the source was there."""
    backoff = Backoff(Reconnect(first_wait_s=1, max_wait_s=5))
    waits = [backoff.next_s() for _ in range(5)]
    for wait_s, least_s in zip(waits, (1, 2, 4, 5, 5), strict=True):
        assert least_s <= wait_s <= 1.25 * least_s
    backoff.reset()
    assert backoff.next_s() <= 1.25


async def test_a_lost_source_is_opened_again(caplog: pytest.LogCaptureFixture) -> None:
    """Times go on, each gap has a beginning and an end, and the log tells no secret."""
    camera = Camera([transport_stream(20)], rate=300)
    async with served(camera):
        secret = camera.url.replace("http://", "http://me:secret@") + "?key=secret"
        with caplog.at_level(logging.WARNING):
            async with reading(camera, address=secret) as found:
                await found.until(lambda: len(found.gaps) >= 4 and len(found.frames) > 45)
    times = [frame.time for frame in found.frames]
    begun, ended, *_ = found.gaps
    assert times == sorted(set(times))
    assert (begun.index, begun.end_s, begun.reason) == (0, None, "the source ended")
    assert ended.index == 0
    assert ended.end_s is not None
    assert ended.end_s > ended.start_s == pytest.approx(19 / 30)
    assert caplog.messages
    assert "secret" not in caplog.text


async def test_a_camera_that_is_away_for_long_is_one_gap() -> None:
    """However often it is tried."""
    camera = Camera([transport_stream(20)], rate=300)
    async with reading(camera) as found:
        await found.until(lambda: found.frames)
        camera.open = False
        await found.until(lambda: len(camera.headers) > 4)
        camera.open = True
        await found.until(lambda: any(gap.end_s is not None for gap in found.gaps))
    begun, ended = found.gaps[:2]
    assert (begun.index, ended.index) == (0, 0)
    assert ended.attempts >= 3


async def test_another_size_and_another_codec(caplog: pytest.LogCaptureFixture) -> None:
    """Both are told, and frames go on."""
    sizes = [transport_stream(20, size=size) for size in ((96, 64), (64, 96))]
    camera = Camera([[*sizes[0], *sizes[1]], transport_stream(20, codec="mpeg2video")], rate=300)
    with caplog.at_level(logging.WARNING):
        async with reading(camera) as found:
            await found.until(lambda: found.reader.report.recoded)
    info, _ = found.reader.opened.result()
    assert (info.width, info.height, info.codec) == (96, 64, "h264")
    assert found.reader.report.resized >= 1
    assert any("the frame size changed from 96x64 to 64x96" in message for message in caplog.messages)
    assert any("the codec changed from h264 to mpeg2video" in message for message in caplog.messages)


@pytest.mark.parametrize("start_s", [2**33 / 90_000 - 0.5, 0])
async def test_timestamps_that_wrap_round_or_jump(start_s: float) -> None:
    """Frames stay 1/30 s apart; a jump is counted."""
    pieces = transport_stream(30, start_s=start_s)
    if not start_s:
        pieces += transport_stream(30, start_s=5000)
    async with reading(Camera([pieces], rate=60)) as found:
        await found.until(lambda: found.gaps)
    times = [float(frame.time) for frame in found.frames]
    steps = [after - before for before, after in itertools.pairwise(times)]
    assert all(step == pytest.approx(1 / 30, abs=1e-3) or step < 1 for step in steps)
    assert (found.reader.clock_jumps == 0) == (start_s > 0)


async def test_a_source_that_never_was_there_is_given_up(free_port: int) -> None:
    """After the time it has for its first picture."""
    found = Reading(f"http://127.0.0.1:{free_port}/camera", open_within_s=0.2)
    found.reader.start()
    with pytest.raises(SourceLost, match="refused"):
        await asyncio.wait_for(asyncio.wrap_future(found.reader.opened), 10)
    assert await asyncio.to_thread(found.reader.stop, 10)


async def test_it_can_be_stopped_while_it_waits() -> None:
    """For bytes that do not come, and for its next try."""
    camera = Camera([transport_stream(60)], rate=300, hangs=True)
    async with reading(camera) as found:
        await found.until(lambda: len(found.frames) > 50)
        assert await asyncio.to_thread(found.reader.stop, 10)
