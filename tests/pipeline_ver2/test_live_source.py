"""One connection to a live source."""

from __future__ import annotations

import asyncio
import http.client
import io
import itertools
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from aiohttp import web
from av.error import FFmpegError

from pipeline_ver2.config_live import LiveConfig
from pipeline_ver2.errors import SourceLost, SourceRefused, VideoError
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.live_body import Allow
from pipeline_ver2.live_source import Connection
from tests.live_camera import BOUNDARY, Camera, multipart, picture, served, transport_stream

SETTINGS = LiveConfig(open_timeout_s=5, read_timeout_s=5)
Seen = list[tuple[Fraction | None, float]]


def follow(
    address: str, settings: LiveConfig = SETTINGS, most: int = 10_000, allow: Allow | None = None
) -> tuple[Connection, Seen]:
    """A connection, closed, and the timestamp and arrival of each of its frames, of so many at most."""
    seen: Seen = []
    stop = threading.Event()
    with Connection(LiveSource(address), settings, time.monotonic, stop, allow) as connection:
        for _, stamp, arrived_s in connection.frames():
            seen.append((stamp, arrived_s))
            if len(seen) == most:
                stop.set()
    return connection, seen


async def test_a_transport_stream_over_http() -> None:
    """Every frame with its timestamp; it ends where a camera would not."""
    async with served(Camera([transport_stream(40)], rate=300)) as camera:
        connection, seen = await asyncio.to_thread(follow, camera.url)
    stamps = [stamp for stamp, _ in seen if stamp is not None]
    assert len(stamps) == 40
    assert {after - before for before, after in itertools.pairwise(stamps)} == {Fraction(1, 30)}
    assert (connection.ends, connection.codec) == (False, "h264")


async def test_motion_jpeg_has_no_time_of_its_own() -> None:
    """Its frames come without timestamps: they are made up by whoever reads them."""
    kind = f"multipart/x-mixed-replace; boundary={BOUNDARY}"
    async with served(Camera([multipart(30)], content_type=kind, rate=200)) as camera:
        connection, seen = await asyncio.to_thread(follow, camera.url)
    assert len(seen) >= 29
    assert {stamp for stamp, _ in seen} == {None}
    assert connection.codec == "mjpeg"


async def test_a_playlist_over_http(hls: str) -> None:
    """One that says that it is whole has an end, and coming there is no loss."""
    connection, seen = await asyncio.to_thread(follow, hls)
    assert len(seen) == 40
    assert connection.ends


async def test_a_playlist_whose_parts_are_asked_for(hls: str) -> None:
    """With somebody to ask, each part is asked for before it is fetched, and gives what it gives without."""
    asked: list[str] = []
    connection, seen = await asyncio.to_thread(follow, hls, allow=asked.append)
    assert (len(seen), connection.ends) == (40, True)
    assert [url.rpartition("/")[2] for url in asked] == ["live", "live", "0.ts", "1.ts"]


async def test_parts_of_one_file(hls: str) -> None:
    """A playlist may name the same file again and again, each time other bytes of it."""
    _, seen = await asyncio.to_thread(follow, hls.replace("live", "ranges"), allow=lambda _url: None)
    assert len({stamp for stamp, _ in seen}) == 40


async def test_a_part_that_is_refused(hls: str) -> None:
    """A playlist leads nowhere that its URL may not lead."""
    asked: list[str] = []

    def allow(url: str) -> None:
        asked.append(url)
        if url.endswith("1.ts"):
            raise SourceRefused("planted")

    with pytest.raises(SourceRefused, match="planted"):
        await asyncio.to_thread(follow, hls, allow=allow)
    assert asked[-1].endswith("1.ts")


@pytest.fixture
async def hls(tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a playlist of two segments; `ranges` beside it has them in one file."""
    segments = [b"".join(transport_stream(20)), b"".join(transport_stream(20, start_s=20 / 30))]
    entries = "".join(f"#EXTINF:0.667,\n{number}.ts\n" for number in range(2))
    playlist = f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n{entries}#EXT-X-ENDLIST\n"

    (tmp_path / "both.ts").write_bytes(b"".join(segments))
    starts = [0, len(segments[0])]
    parts = [f"#EXT-X-BYTERANGE:{len(segment)}@{start}" for segment, start in zip(segments, starts, strict=True)]
    ranges = playlist.replace("0.ts", f"{parts[0]}\nboth.ts").replace("1.ts", f"{parts[1]}\nboth.ts")

    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name == "both.ts":
            return web.FileResponse(tmp_path / name)
        if name == "ranges":
            return web.Response(text=ranges, content_type="application/vnd.apple.mpegurl")
        if name == "live":
            return web.Response(text=playlist, content_type="application/vnd.apple.mpegurl")
        return web.Response(body=segments[int(name.removesuffix(".ts"))], content_type="video/mp2t")

    app = web.Application()
    app.add_routes([web.get("/{name}", answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/live"
    await runner.cleanup()


def test_a_file_is_read_as_fast_as_it_plays(clip: Path) -> None:
    """No frame comes before its time."""
    connection, seen = follow(str(clip), most=12)
    arrivals = [arrived_s for _, arrived_s in seen]
    assert len(arrivals) == 12
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] - arrivals[0] > 0.2
    assert connection.ends


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be read in one go, until it ends."""
    receive, send = os.pipe()
    content = b"".join(transport_stream(30))

    def write() -> None:
        with os.fdopen(send, "wb") as pipe:
            pipe.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(receive, "rb") as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        connection, seen = follow("-")
    writer.join(10)
    assert len(seen) == 30
    assert connection.ends


async def test_silence_is_a_loss() -> None:
    """A camera that holds the connection and sends nothing is given up after the read limit."""
    quick = LiveConfig(read_timeout_s=0.3)
    async with served(Camera([transport_stream(40)], rate=300, hangs=True)) as camera:
        with pytest.raises((TimeoutError, FFmpegError, SourceLost)):
            await asyncio.to_thread(follow, camera.url, quick)


async def test_sound_alone_is_a_loss() -> None:
    """Bytes come, pictures do not."""
    quick = LiveConfig(read_timeout_s=1)
    async with served(Camera([sound_goes_on()], rate=60, hangs=True)) as camera:
        with pytest.raises(SourceLost, match="no picture for 1 s"):
            await asyncio.to_thread(follow, camera.url, quick)


def sound_goes_on() -> list[bytes]:
    """A transport stream with a second of pictures and many of sound, in pieces."""
    target, pieces = io.BytesIO(), []
    options = {"flush_packets": "1", "max_interleave_delta": "1"}
    with av.open(target, "w", format="mpegts", container_options=options) as container:
        video = container.add_stream("mpeg2video", rate=30)
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        sound = container.add_stream("mp2", rate=48_000, layout="mono")
        for number in range(300):
            if number < 30:
                container.mux(video.encode(av.VideoFrame.from_ndarray(picture(number), format="rgb24")))
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 1600), np.int16), format="s16", layout="mono")
            samples.sample_rate, samples.pts = 48_000, 1600 * number
            container.mux(sound.encode(samples))
            pieces.append(target.getvalue())
            target.seek(0)
            target.truncate()
    return pieces


@pytest.mark.parametrize("address", ["/dev/video63", "rtsp://127.0.0.1:{port}/a", "http://127.0.0.1:{port}/a"])
def test_what_is_not_there_is_said_at_once(address: str, free_port: int) -> None:
    """By an error that the reader knows."""
    with pytest.raises((OSError, FFmpegError, http.client.HTTPException)):
        follow(address.format(port=free_port))


def test_a_file_that_is_no_video_is_said_at_once(tmp_path: Path) -> None:
    """As everywhere."""
    (tmp_path / "a.mp4").write_text("no video")
    with pytest.raises(VideoError, match=r"a\.mp4"):
        follow(str(tmp_path / "a.mp4"))


async def test_a_page_is_no_video() -> None:
    """A camera's login page, for instance."""
    async with served(Camera([[b"<html>please log in</html>"]])) as camera:
        with pytest.raises((FFmpegError, SourceLost)):
            await asyncio.to_thread(follow, camera.url)


async def test_another_codec_is_a_loss() -> None:
    """What can no longer be decoded is opened anew, and read then."""
    pieces = [*transport_stream(30), *transport_stream(200, codec="mpeg2video", start_s=1)]
    async with served(Camera([pieces], rate=300, hangs=True)) as camera:
        with pytest.raises((SourceLost, FFmpegError, TimeoutError)):
            await asyncio.to_thread(follow, camera.url, LiveConfig(read_timeout_s=0.5))
