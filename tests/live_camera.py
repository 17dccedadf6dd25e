"""Cameras for tests: small real HTTP servers on port 0 that stream what was encoded before, and break when told to."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction

import av
import cv2
import numpy as np
from aiohttp import web
from av.video.stream import VideoStream
from numpy.typing import NDArray

RATE = 30
BOUNDARY = "frame"


def picture(number: int, size: tuple[int, int] = (96, 64)) -> NDArray[np.uint8]:
    """Frame `number`: `(H, W, 3)` uint8, grey, brighter from frame to frame; `size` is (width, height)."""
    return np.full((size[1], size[0], 3), 20 + number % 200, np.uint8)


def transport_stream(
    frames: int,
    *,
    size: tuple[int, int] = (96, 64),
    codec: str = "libx264",
    start_s: float = 0,
) -> list[bytes]:
    """An MPEG transport stream at 30 fps in pieces, one a frame; its timestamps begin at `start_s`."""
    target, pieces = io.BytesIO(), []
    options = {"preset": "ultrafast", "tune": "zerolatency"} if codec == "libx264" else {}
    with av.open(target, "w", format="mpegts", container_options={"flush_packets": "1"}) as container:
        stream = container.add_stream(codec, rate=RATE, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.gop_size = 10
        stream.codec_context.max_b_frames = 0
        stream.time_base = Fraction(1, 90_000)
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(number, size), format="rgb24")
            frame.pts, frame.time_base = round(start_s * RATE) + number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
            pieces.append(target.getvalue())
            target.seek(0)
            target.truncate()
        container.mux(stream.encode(None))
    return [*pieces, target.getvalue()]


def multipart(frames: int) -> list[bytes]:
    """Motion JPEG as cameras send it, one piece a frame."""
    pieces = []
    for number in range(frames):
        _, encoded = cv2.imencode(".jpg", picture(number))
        head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(encoded)}\r\n\r\n"
        pieces.append(head.encode() + encoded.tobytes() + b"\r\n")
    return pieces


@dataclass
class Camera:
    """One camera. `scripts` are the pieces of each connection in turn, the last again and again.

    A connection gets its pieces at `rate` a second, and then ends, or is silent for ever if `hangs`.
    """

    scripts: list[Sequence[bytes]]
    content_type: str = "video/mp2t"
    rate: float = RATE
    hangs: bool = False
    connections: int = 0
    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)
    now: set[asyncio.Task[object]] = field(default_factory=set)
    open: bool = True

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send the pieces of this connection's script."""
        self.headers.append(dict(request.headers))
        if not self.open:
            return web.Response(status=503)
        pieces = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        response = web.StreamResponse(headers={"Content-Type": self.content_type})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self.now.add(task)
        try:
            begun = asyncio.get_running_loop().time()
            for number, piece in enumerate(pieces):
                await asyncio.sleep(begun + number / self.rate - asyncio.get_running_loop().time())
                await response.write(piece)
            if self.hangs:
                await asyncio.Event().wait()
        except ConnectionError:
            pass  # the reader has gone
        finally:
            self.now.discard(task)
        return response

    def cut(self) -> None:
        """Break every connection."""
        for task in self.now:
            task.cancel()


@asynccontextmanager
async def served(camera: Camera) -> AsyncIterator[Camera]:
    """The camera on a free port."""
    app = web.Application()
    app.add_routes([web.get("/camera", camera.stream)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    camera.url = f"http://127.0.0.1:{runner.addresses[0][1]}/camera"
    try:
        yield camera
    finally:
        camera.cut()
        await runner.cleanup()
