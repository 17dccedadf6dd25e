"""What a file is said to be before it is read, and which files are refused with which reason."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline_ver2.errors import VideoError
from pipeline_ver2.main import VideoInfo, probe_video
from pipeline_ver2.probe import Orientation, plausible_count, plausible_duration, plausible_rate
from tests.videos import base, cut, ffmpeg, first_picture, folder, lavfi


def corners(rgb: NDArray[np.uint8]) -> list[str]:
    """Colours near the corners, clockwise from the top left."""
    height, width = rgb.shape[:2]
    places = [(8, 8), (8, width - 9), (height - 9, width - 9), (height - 9, 8)]
    names = {(255, 0, 0): "red", (0, 255, 0): "green", (0, 0, 255): "blue", (255, 255, 255): "white"}
    colours = [[int(level > 127) * 255 for level in rgb[place]] for place in places]
    return [names[red, green, blue] for red, green, blue in colours]


def quadrants() -> Path:
    boxes = "drawbox=0:0:80:60:red:fill,drawbox=80:0:80:60:lime:fill,drawbox=80:60:80:60:blue:fill"
    return lavfi("quadrants.mp4", f"color=white:s=160x120:r=30:d=0.2,{boxes}", "-pix_fmt", "yuv420p")


def test_probe_says_what_a_plain_file_is() -> None:
    """Size, duration, rate, codec and count come from a sound header."""
    path = base()
    assert probe_video(path) == VideoInfo(path, 160, 96, 2.0, 30.0, 0, "h264", "container", 60)


@pytest.mark.fault("V1")
@pytest.mark.parametrize(
    ("counterclockwise", "expected", "degrees"),
    [
        (0, ["red", "green", "blue", "white"], 0),
        (90, ["green", "blue", "white", "red"], 270),
        (180, ["blue", "white", "red", "green"], 180),
        (270, ["white", "red", "green", "blue"], 90),
    ],
)
def test_rotated_recordings_stand_upright(counterclockwise: int, expected: list[str], degrees: int) -> None:
    """The display matrix is applied once, to size and pixels."""
    name = f"rotated{counterclockwise}.mp4"
    path = ffmpeg(name, "-display_rotation", str(counterclockwise), "-i", str(quadrants()), "-c", "copy")
    info, picture = probe_video(path), first_picture(path)
    assert corners(picture) == expected
    assert info.rotation == degrees
    assert (info.height, info.width) == picture.shape[:2] == ((160, 120) if degrees % 180 else (120, 160))


@pytest.mark.fault("V1")
@pytest.mark.parametrize(
    ("flip", "expected"),
    [("-display_hflip", ["green", "red", "white", "blue"]), ("-display_vflip", ["white", "blue", "green", "red"])],
)
def test_mirrored_recordings_are_mirrored_back(flip: str, expected: list[str]) -> None:
    """A display matrix that mirrors is no rotation by 180 degrees."""
    path = ffmpeg(f"mirrored{flip}.mp4", flip, "-i", str(quadrants()), "-c", "copy")
    assert corners(first_picture(path)) == expected


@pytest.mark.parametrize("turned", [Orientation(transpose=True), Orientation(flip_rows=True, flip_columns=True)])
def test_turning_an_empty_strip_keeps_the_layout(turned: Orientation) -> None:
    """A one-pixel-high frame is turned like any other."""
    strip = np.arange(9, dtype=np.uint8).reshape(1, 3, 3)
    result = turned.apply(strip)
    assert result.shape == ((3, 1, 3) if turned.transpose else (1, 3, 3))
    assert sorted(result.ravel()) == list(range(9))


@pytest.mark.fault("V7")
def test_rates_of_a_header_are_checked() -> None:
    """Artefacts of a time base are no frame rate."""
    senseless = [None, Fraction(0), Fraction(1000), Fraction(90_000), Fraction(-30)]
    assert not any(plausible_rate(rate) for rate in senseless)
    assert all(plausible_rate(rate) for rate in [Fraction(1, 10), Fraction(30_000, 1001), Fraction(240)])


@pytest.mark.fault("V7")
def test_durations_and_counts_of_a_header_are_checked() -> None:
    """NaN, negative and huge are unknown."""
    durations = [None, 0.0, -1.0, float("nan"), float("inf"), 1e12, 2.5]
    assert [plausible_duration(value) for value in durations] == [None] * 6 + [2.5]
    counts = [plausible_count(-1, 2), plausible_count(0, 2), plausible_count(2**62, 2), plausible_count(60, 2)]
    assert counts == [None, None, None, 60]
    assert plausible_count(2**62, None) is None


@pytest.mark.fault("V9")
def test_files_that_are_no_video_are_refused_with_the_reason() -> None:
    """Each message names the file and says what is wrong."""
    text = folder() / "text.mp4"
    text.write_text("not a video\n" * 100)
    (folder() / "empty.mp4").touch()
    sound = lavfi("sound.m4a", "sine=d=0.3", "-c:a", "aac")
    jpeg = lavfi("one.jpg", "testsrc=s=64x48", "-frames:v", "1")
    png = lavfi("one.png", "testsrc=s=64x48", "-frames:v", "1")
    cover_options = ("-map", "0", "-map", "1", "-c:a", "copy", "-c:v", "mjpeg", "-disposition:v", "attached_pic")
    reasons = {
        folder() / "missing.mp4": "no such file",
        folder(): "not a file",
        folder() / "empty.mp4": "the file is empty",
        text: "not a video",
        cut("truncated.mp4", base(), 0.6): "truncated, its index (moov) is missing",
        sound: "holds no video stream",
        jpeg: "a single JPEG picture, not a video; a bare MJPEG stream wants a container",
        png: "a single PNG picture",
        ffmpeg("cover.m4a", "-i", str(sound), "-i", str(jpeg), *cover_options): "holds only a cover picture",
    }
    for path, reason in reasons.items():
        with pytest.raises(VideoError, match=path.name) as caught:
            probe_video(path)
        assert reason in str(caught.value)


@pytest.mark.fault("V9")
def test_a_video_of_which_nothing_decodes_is_refused() -> None:
    """A sound index over pixels that are all noise."""
    whole = ffmpeg("front.mp4", "-i", str(base()), "-c", "copy", "-movflags", "+faststart")
    data = whole.read_bytes()
    path = folder() / "noise.mp4"
    at = data.index(b"mdat") + 4
    path.write_bytes(data[:at] + bytes(len(data) - at))
    with pytest.raises(VideoError, match="no frame of the video could be decoded"):
        probe_video(path)


@pytest.mark.fault("V9")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.mp4", "ffconcat version 1.0\nfile base.mp4\n"),
        ("stream.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nbase.mp4\n#EXT-X-ENDLIST\n"),
        ("stream.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nbase.mp4\n#EXT-X-ENDLIST\n"),
    ],
)
def test_lists_that_name_other_files_are_not_followed(name: str, text: str) -> None:
    """A script or playlist must not make us open what it names."""
    base()
    path = folder() / name
    path.write_text(text)
    with pytest.raises(VideoError, match="not a video"):
        probe_video(path)


ODD_NAMES = (
    "vidéo de été.mp4",
    "監視カメラ 一.mp4",
    'it\'s "quoted".mp4',
    "a#b?c=d.mp4",
    "frame%05d.mp4",
    "concat:x|y.mp4",
    "-i.mp4",
    "[1].mp4",
    f"{'n' * 240}.mp4",
    "line\nbreak.mp4",
)


@pytest.mark.fault("V13")
@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_file_names_are_only_names(name: str) -> None:
    """No character of a name has a meaning to the reader."""
    path = folder() / name
    path.write_bytes(base().read_bytes())
    assert probe_video(path).frames_header == 60


@pytest.mark.fault("V13")
@pytest.mark.parametrize("name", ["concat:x|y.mp4", "subfile,,start,0,end,9,,:x.mp4", "data:video,mp4", "-i.mp4"])
def test_a_name_without_its_folder_is_no_protocol(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before a colon is part of the name."""
    monkeypatch.chdir(folder())
    Path(name).write_bytes(base().read_bytes())
    assert probe_video(Path(name)).frames_header == 60


@pytest.mark.fault("V13")
@pytest.mark.parametrize("name", [f"{'n' * 300}.mp4", "nul\0byte.mp4"])
def test_names_no_file_can_have_are_video_errors(name: str) -> None:
    """Too long or with a NUL: our error, not the system's."""
    with pytest.raises(VideoError):
        probe_video(folder() / name)
