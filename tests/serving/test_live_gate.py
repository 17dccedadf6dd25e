"""Which live sources jobs may follow."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_ver2.config import ServingConfig
from pipeline_ver2.errors import RequestError, SourceRefused, SourceUnreachable
from serving.live_gate import LiveGate


def gate(*hosts: str, private: bool = True) -> LiveGate:
    """A gate for these hosts."""
    content: dict[str, Any] = {"allowed_hosts": hosts, "downloads": {"private": private}}
    return LiveGate(ServingConfig.model_validate(content))


@pytest.mark.fault("O8")
@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("127.0.0.1", "rtsp://user:secret@127.0.0.1/stream?channel=1"),
        ("127.0.0.1", "rtsp://127.0.0.1:554/stream"),
        ("127.0.0.1:554", "rtsp://127.0.0.1/stream"),
        ("127.0.0.1", "RTSPS://127.0.0.1:322/stream"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/live.m3u8"),
        ("127.0.0.1", "https://user@127.0.0.1/live"),
    ],
)
def test_what_may_be_followed(entry: str, address: str) -> None:
    """With user and password, on the usual port of its scheme or the one that is named; gives the address."""
    assert gate(entry)(address) == ["127.0.0.1"]
    with pytest.raises(SourceRefused, match="not a public address"):
        gate(entry, private=False)(address)


@pytest.mark.fault("O8")
@pytest.mark.parametrize(
    "address",
    [
        "rtsp://10.0.0.1/stream",
        "rtsp://127.0.0.1:8554/stream",
        "rtsp://127.0.0.1@evil.example/stream",
        "rtmp://127.0.0.1/stream",
        "crypto+http://127.0.0.1/part.ts",
        "file:///etc/passwd",
        "/dev/video0",
        "0",
        "-",
        "",
    ],
)
def test_what_may_not_be_followed(address: str) -> None:
    """Other hosts, ports and schemes, and what is on this machine."""
    with pytest.raises(SourceRefused):
        gate("127.0.0.1").check(address)


@pytest.mark.parametrize(
    "address",
    [
        "rtsp://127.0.0.1:port/secret",
        "rtsp://[secret/",
        "rtsp://127.0.0.1/a\nsecret",
        "rtsp://secret@127.0.0.1\\@evil.example/",
        "rtsp://127.0.0.1/sécret",
        f"rtsp://127.0.0.1/secret{'a' * 2000}",
    ],
)
def test_what_is_no_url(address: str) -> None:
    """Whatever parsers may see differently; what was sent is not told."""
    with pytest.raises(RequestError, match="no URL") as caught:
        gate("127.0.0.1").check(address)
    assert "cret" not in str(caught.value)


def test_a_host_that_is_not_known() -> None:
    """A client is told at once; later, it is a source that is away."""
    with pytest.raises(SourceUnreachable, match="not known"):
        gate("camera.invalid").check("rtsp://user:secret@camera.invalid/stream")
    with pytest.raises(OSError, match=r"not known|resolution"):
        gate("camera.invalid")("rtsp://camera.invalid/stream")
