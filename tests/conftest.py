"""What tests of several folders need."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest


@pytest.fixture
def free_ports() -> tuple[int, int]:
    """Two loopback ports nobody listened on a moment ago, for processes that are told their port."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        first, second = (each.getsockname()[1] for each in sockets)
    return first, second


@pytest.fixture
def free_port(free_ports: tuple[int, int]) -> int:
    """A loopback port nobody listened on a moment ago."""
    return free_ports[0]
