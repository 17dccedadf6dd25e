"""What tests of several folders need."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import av
import numpy as np
import pytest

# What a shell starts in the background ignores Ctrl-C, and so would every process started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FRAMES = 145
"""At 30 fps with an interval of 11: 13 keyframes, 4 batches, 5 slots, the last one filled up by two repeats."""


@pytest.fixture
def three_free_ports() -> tuple[int, int, int]:
    """Three loopback ports nobody listened on a moment ago, for processes that are told their port."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        first, second, third = (each.getsockname()[1] for each in sockets)
    return first, second, third


@pytest.fixture
def free_ports(three_free_ports: tuple[int, int, int]) -> tuple[int, int]:
    """Two of them."""
    return three_free_ports[:2]


@pytest.fixture
def free_port(free_ports: tuple[int, int]) -> int:
    """A loopback port nobody listened on a moment ago."""
    return free_ports[0]


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of 96x64 pixels at 30 fps whose brightness rises from frame to frame."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(FRAMES):
            pixels = np.full((64, 96, 3), 20 + number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return path
