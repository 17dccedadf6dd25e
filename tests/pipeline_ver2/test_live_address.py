"""What a live source is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ver2.live_address import LiveSource, device_of, has_host, is_live, public_name


@pytest.mark.parametrize("address", ["rtsp://cam/1", "RTSPS://cam", "http://cam:81/a", "https://cam/a", "-"])
def test_these_are_live(address: str) -> None:
    """By their scheme, or as standard input."""
    assert is_live(address)


@pytest.mark.parametrize("address", ["clip.mp4", "/a/b.ts", "ftp://cam/a", "file:///etc/passwd", "", "C:\\a.mp4"])
def test_these_are_files(address: str) -> None:
    """Also what has a scheme that is not ours."""
    assert not is_live(address)


@pytest.mark.parametrize("address", ["rtsp://u:p@cam:554/1", "http://[::1]:80/a", "https://cam", "-", "0", "clip.mp4"])
def test_these_can_be_gone_to(address: str) -> None:
    """A URL with a host, and what needs none."""
    assert has_host(address)


@pytest.mark.parametrize("address", ["http://", "rtsp://:554/1", "http://[::1", "http://cam:0/", "https://cam:65536/"])
def test_these_lead_nowhere(address: str) -> None:
    """No host, half an address, a port that cannot be."""
    assert not has_host(address)


def test_a_webcam_has_a_device_or_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is a file's name is the file."""
    monkeypatch.chdir(tmp_path)
    assert [device_of(address) for address in ("/dev/video2", "0", "/dev/sda", "x0")] == [
        "/dev/video2",
        "/dev/video0",
        None,
        None,
    ]
    (tmp_path / "0").touch()
    assert device_of("0") is None


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("rtsp://user:secret@cam:554/1?token=x", "rtsp://cam:554/1"),
        ("https://a@b:secret@cam/live.m3u8#x", "https://cam/live.m3u8"),
        ("/films/a.mp4", "a.mp4"),
        ("/dev/video0", "/dev/video0"),
        ("-", "-"),
    ],
)
def test_a_name_tells_no_secret(address: str, name: str) -> None:
    """User, password and query stay where they are."""
    assert public_name(address) == name


@pytest.mark.parametrize(("address", "paced", "reconnects"), [("a.mp4", True, False), ("-", False, False)])
def test_what_has_an_end_is_not_opened_again(address: str, *, paced: bool, reconnects: bool) -> None:
    """A file and a pipe end; a camera is lost."""
    source = LiveSource(address)
    assert (source.is_paced, source.reconnects) == (paced, reconnects)
    assert LiveSource("rtsp://cam").reconnects
