"""Which videos are taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline_ver2.config import VideoLimits
from pipeline_ver2.errors import MediaPathError, VideoError, VideoOverLimits
from serving.sources import allowed_path, check_video
from tests.videos import cut, ffmpeg


@pytest.mark.fault("O8")
def test_paths_below_a_media_root(tmp_path: Path) -> None:
    """A file below a root is taken, by its real path; what leads out, or is no file, is refused with one message."""
    root, outside = tmp_path / "media", tmp_path / "secret.mp4"
    (root / "deep").mkdir(parents=True)
    film = root / "deep" / "film.mp4"
    film.touch()
    outside.touch()
    (root / "link").symlink_to(outside)
    os.mkfifo(root / "pipe")
    assert allowed_path(f"{root}/deep/../deep/film.mp4", [root]) == film
    refused = [
        str(outside),
        f"{root}/../secret.mp4",
        f"{root}/link",
        f"{root}/pipe",
        f"{root}/missing.mp4",
        str(root),
        "deep/film.mp4",
        "",
        "http://127.0.0.1/film.mp4",
        "file:///etc/passwd",
    ]
    for path in refused:
        with pytest.raises(MediaPathError, match="is no absolute path of a file under a media root"):
            allowed_path(path, [root])
    with pytest.raises(MediaPathError):
        allowed_path("a\0b", [root])
    with pytest.raises(MediaPathError):
        allowed_path(str(film), [])


def test_a_video_within_the_limits(clip: Path) -> None:
    """96x64 at 30 fps for 4.8 s may be just that."""
    check_video(clip, "clip.mp4", VideoLimits(pixels=96 * 64, seconds=5, fps=30))


@pytest.mark.parametrize(
    ("limits", "key"),
    [({"pixels": 96 * 64 - 1}, "pixels"), ({"seconds": 4}, "seconds"), ({"fps": 29}, "fps")],
)
def test_a_video_beyond_a_limit(clip: Path, limits: dict[str, float], key: str) -> None:
    """Refused by its header, with the key that says so."""
    with pytest.raises(VideoOverLimits, match=rf"serving\.limits\.{key}"):
        check_video(clip, "clip.mp4", VideoLimits.model_validate(limits))


def test_a_small_file_of_large_frames_is_refused_undecoded(tmp_path: Path) -> None:
    """A few kilobytes that would be gigabytes of pixels."""
    bomb = ffmpeg("bomb.mp4", "-f", "lavfi", "-i", "color=black:s=8192x8192:r=1:d=1", "-preset", "ultrafast")
    assert bomb.stat().st_size < 500_000
    with pytest.raises(VideoOverLimits, match="pixels a frame"):
        check_video(bomb, "bomb.mp4", VideoLimits())


@pytest.mark.fault("V9")
@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "audio"])
def test_what_is_no_video(tmp_path: Path, clip: Path, kind: str) -> None:
    """The message says why, with the client's name for it and without our path."""
    path = tmp_path / "source"
    if kind == "truncated":
        path.write_bytes(cut("half.mp4", clip, 0.5).read_bytes())
    elif kind == "audio":
        path.write_bytes(ffmpeg("tone.wav", "-f", "lavfi", "-i", "sine=d=0.2").read_bytes())
    else:
        path.write_bytes(b"" if kind == "empty" else b"no video at all\n" * 100)
    with pytest.raises(VideoError, match=r"holiday\.mp4") as caught:
        check_video(path, "holiday.mp4", VideoLimits())
    assert str(tmp_path) not in str(caught.value)
