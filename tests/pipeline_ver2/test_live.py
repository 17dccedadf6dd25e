"""Keyframe clips pulled out of a live source."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.decoder import KeyframeClip
from pipeline_ver2.errors import SourceLost
from pipeline_ver2.live import LiveDecoder
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.losses import Losses
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.results import GapRecord
from tests.live_camera import Camera, served, transport_stream
from tests.pipeline_ver2.fake_stage import until

SIZE = (32, 48)


def settings(**overrides: Any) -> Config:  # noqa: ANN401 - values of any key
    """Quick limits; keys with `__` for dots."""
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    quick = {"live.read_timeout_s": 2.0, "live.reconnect.first_wait_s": 0.02, "pipeline.retry_for_s": 10}
    return load_config(None, {**quick, **dotted}, environ={})


def decoder_of(source: LiveSource, config: Config, losses: Losses | None = None) -> LiveDecoder:
    """A decoder with a clock of its own."""
    return LiveDecoder(source, config, SIZE, TimingRecorder(), losses or Losses())


async def everything(decoder: LiveDecoder) -> list[KeyframeClip | GapRecord]:
    """All it gives."""
    found = []
    while (item := await decoder.next_clip()) is not None:
        found.append(item)
    return found


def live_threads() -> list[str]:
    """Threads of live sources that run on, given a moment to end: what is shut down is not waited for by the run."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("live")]
    for thread in threads:
        thread.join(5)
    return [thread.name for thread in threads if thread.is_alive()]


async def test_a_file_as_if_live(clip: Path) -> None:
    """Its keyframes are those it has as a file, each with the moment it arrived; then it is over."""
    source = LiveSource(str(clip), duration_s=1.3)
    async with decoder_of(source, settings()) as decoder:
        clips = [item for item in await everything(decoder) if isinstance(item, KeyframeClip)]
        assert await decoder.next_clip() is None
    assert [each.key_index for each in clips] == [11, 22, 33][: len(clips)]
    assert {each.clip.shape for each in clips} == {(16, *SIZE, 3)}
    arrivals = [each.arrived_s or 0 for each in clips]
    assert arrivals == sorted(arrivals)
    assert (decoder.info.width, decoder.info.height) == (96, 64)
    assert live_threads() == []


async def test_until_a_time() -> None:
    """A run may end before its source does."""
    end = datetime.now(UTC) + timedelta(seconds=0.5)
    camera = Camera([transport_stream(60)], rate=100, hangs=True)
    async with served(camera), decoder_of(LiveSource(camera.url, until=end), settings()) as decoder:
        await everything(decoder)
    assert datetime.now(UTC) >= end


async def test_a_lost_source_begins_a_new_clip() -> None:
    """The gap stands between the clips, and no clip holds frames of both its sides; what is missing is counted."""
    losses = Losses()
    camera, config = Camera([transport_stream(20)], rate=300), settings(live__reconnect__first_wait_s=1)
    items: list[KeyframeClip | GapRecord | None] = []
    async with served(camera), decoder_of(LiveSource(camera.url), config, losses) as decoder:
        while len(items) < 4:
            items.append(await decoder.next_clip())
        assert decoder.gaps >= 1
        assert any("the source was away" in warning for warning in decoder.report.warnings)
    before, began, ended, after = items
    assert isinstance(before, KeyframeClip)
    assert isinstance(after, KeyframeClip)
    assert isinstance(began, GapRecord)
    assert isinstance(ended, GapRecord)
    assert (before.key_index, began.end_s, ended.end_s is not None) == (11, None, True)
    # The camera begins anew, dark; before it nothing is shown, so its own first frame repeats.
    assert after.clip.mean() < 40
    assert (after.key_index % 11, after.key_index >= 33) == (0, True)
    assert losses.as_dict()["keyframes"]["source_lost"] >= 1


@pytest.mark.parametrize("policy", ["DROP_OLDEST", "DROP_LATEST"])
async def test_who_does_not_keep_up_loses_what_is_counted(policy: Any) -> None:  # noqa: ANN401 - a policy
    """Keyframes that came and those that did not make the whole; indices stay those of the timeline."""
    losses = Losses()
    camera = Camera([transport_stream(150)], rate=600, hangs=True)
    config = settings(live__buffer_frames=8, live__read_timeout_s=1.0)
    async with served(camera), decoder_of(LiveSource(camera.url, policy), config, losses) as decoder:
        await until(lambda: decoder.report.frames_decoded > 140)  # nobody asks for clips meanwhile
        clips = []
        while isinstance(item := await decoder.next_clip(), KeyframeClip):
            clips.append(item)
    lost = losses.as_dict()
    assert lost["frames"]["buffer_full"] >= 100
    assert all(each.key_index % 11 == 0 for each in clips)
    if policy == "DROP_OLDEST":
        assert len(clips) + lost["keyframes"]["buffer_full"] == clips[-1].key_index // 11


async def test_a_source_that_never_was_there(free_port: int) -> None:
    """Entering says so, and no thread is left."""
    source = LiveSource(f"http://127.0.0.1:{free_port}/")
    with pytest.raises(SourceLost, match="refused"):
        async with decoder_of(source, settings(pipeline__retry_for_s=0.1)):
            pass
    assert live_threads() == []


@pytest.mark.parametrize("when", ["entering", "following"])
async def test_cancelled_it_lets_go(when: str) -> None:
    """While it waits for the first picture, and later: within limits, no thread left."""
    camera = Camera([transport_stream(60) if when == "following" else []], rate=300, hangs=True)
    async with served(camera):

        async def follow() -> None:
            async with decoder_of(LiveSource(camera.url), settings(live__read_timeout_s=30)) as decoder:
                await everything(decoder)

        task = asyncio.create_task(follow())
        await until(lambda: camera.connections)
        await asyncio.sleep(0.3 if when == "following" else 0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
        await until(lambda: not live_threads())
