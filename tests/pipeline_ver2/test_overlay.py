"""The annotated video: frames, times and audio of the source, boxes and captions where and when they belong."""

from __future__ import annotations

import struct
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline_ver2.errors import ResultsError, VideoError
from pipeline_ver2.overlay import annotate
from pipeline_ver2.painting import Caption, KeyframeOverlay
from pipeline_ver2.video import VideoReader
from pipeline_ver2.wire import Detection, LabelScore
from tests.videos import damaged, ffmpeg, folder, lavfi, numbered, steady

Picture = NDArray[np.uint8]


def grey(name: str = "grey.mp4", size: str = "160x120", *arguments: str) -> Path:
    return lavfi(name, f"color=gray:s={size}:r=30:d=1", "-pix_fmt", "yuv420p", *arguments)


def person(*box: float, label: str = "wave") -> Detection:
    return Detection(box=(box[0], box[1], box[2], box[3]), labels=(LabelScore(name=label, score=0.9),))


def frames_of(path: Path) -> tuple[list[Picture], list[float]]:
    with VideoReader(path) as reader:
        pictures, times = [], []
        while (frame := reader.next_frame()) is not None:
            pictures.append(reader.rgb(frame.picture))
            times.append(float(frame.time))
        return pictures, times


def is_drawn(picture: Picture, rows: slice, columns: slice) -> bool:
    """Whether a region of a frame of `grey` is no longer all grey."""
    return bool(np.abs(picture[rows, columns].astype(int) - 128).max() > 25)


BOX = (100.0, 40.0, 150.0, 100.0)
LEFT_EDGE = (slice(60, 90), slice(98, 103))
BOTTOM = (slice(110, 120), slice(0, 90))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "annotated.mp4"


def test_every_frame_keeps_its_time(out: Path) -> None:
    """Variable frame rate: same number of frames, same times, duration within one frame."""
    times = (*steady(30, 1), *(1 + Fraction(number, 6) for number in range(6)))
    assert annotate(numbered("variable.mp4", times), out, keyframes=[]) == []
    _, found = frames_of(out)
    assert found == pytest.approx([float(time) for time in times], abs=1e-4)
    with av.open(str(out)) as container:
        assert container.duration == pytest.approx((1 + 1) * 1e6, abs=1e6 / 6)


def test_boxes_hold_from_their_keyframe_to_the_next(out: Path) -> None:
    """Never one frame early, drawn until the next keyframe replaces them by nothing."""
    keyframes = [KeyframeOverlay(20 / 30, ()), KeyframeOverlay(10 / 30, [person(*BOX)])]
    annotate(grey(), out, keyframes=keyframes)
    pictures, _ = frames_of(out)
    assert [is_drawn(picture, *LEFT_EDGE) for picture in pictures] == [10 <= n < 20 for n in range(30)]
    inside = (slice(65, 90), slice(110, 140))
    assert not any(is_drawn(picture, *inside) for picture in pictures)


@pytest.mark.parametrize(("rounded", "frame"), [(0.333, 10), (0.667, 20)])
def test_times_rounded_on_their_way_name_the_same_frame(rounded: float, frame: int, out: Path) -> None:
    """Milliseconds do not move a box by a frame."""
    annotate(grey(), out, keyframes=[KeyframeOverlay(rounded, [person(*BOX)])])
    pictures, _ = frames_of(out)
    assert [is_drawn(picture, *LEFT_EDGE) for picture in pictures].index(True) == frame


def test_a_caption_lasts_as_long_as_its_slot(out: Path) -> None:
    """From its start up to and without its end, at the bottom; the later of two wins; an empty one is none."""
    captions = [Caption(5 / 30, 15 / 30, "Slot 1: wave, someone waves"), Caption(20 / 30, 25 / 30, "")]
    annotate(grey(), out, keyframes=[], captions=captions)
    pictures, _ = frames_of(out)
    assert [is_drawn(picture, *BOTTOM) for picture in pictures] == [5 <= n < 15 for n in range(30)]
    assert not any(is_drawn(picture, slice(0, 80), slice(0, 160)) for picture in pictures)


@pytest.mark.fault("V11")
def test_odd_sizes_are_padded_to_even_ones(out: Path) -> None:
    """321x241 in 4:4:4 becomes 322x242 in 4:2:0, which browsers play."""
    source = lavfi("odd.mp4", "color=gray:s=320x240:r=30:d=0.2", "-vf", "scale=321:241,format=yuv444p")
    annotate(source, out, keyframes=[])
    with av.open(str(out)) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.pix_fmt, stream.codec.name) == (322, 242, "yuv420p", "h264")
    picture = frames_of(out)[0][0]
    assert np.abs(picture.astype(int) - 128).max() <= 6


@pytest.mark.fault("V1")
def test_a_rotated_recording_comes_out_upright(out: Path) -> None:
    """Turned pixels, no display matrix left, boxes in upright pixels."""
    turned = ffmpeg("turned-grey.mp4", "-display_rotation", "90", "-i", str(grey()), "-c", "copy")
    annotate(turned, out, keyframes=[KeyframeOverlay(0, [person(20, 100, 100, 150)])])
    with VideoReader(out) as reader:
        assert (reader.info.width, reader.info.height, reader.info.rotation) == (120, 160, 0)
    picture = frames_of(out)[0][0]
    assert is_drawn(picture, slice(110, 140), slice(18, 23))


def test_non_square_pixels_stay_non_square(out: Path) -> None:
    """The player stretches the result as it stretched the source."""
    annotate(grey("wide.mp4", "160x120", "-vf", "setsar=4/3"), out, keyframes=[])
    with av.open(str(out)) as container:
        assert container.streams.video[0].sample_aspect_ratio == Fraction(4, 3)


@pytest.mark.fault("V8")
def test_damage_of_the_source_is_told_and_the_rest_written(out: Path) -> None:
    """The result goes on after the damage and says where it was."""
    whole = lavfi("four.mp4", "testsrc2=s=160x120:r=30:d=4", "-pix_fmt", "yuv420p", "-g", "30", "-threads", "1")
    warnings = annotate(damaged("four-damaged.mp4", whole, at=0.4, size=4000), out, keyframes=[])
    assert any(warning.startswith("damaged from") for warning in warnings)
    assert frames_of(out)[1][-1] == pytest.approx(119 / 30, abs=1e-4)


def test_the_index_is_in_front(out: Path) -> None:
    """A browser can play while it loads."""
    annotate(grey(), out, keyframes=[])
    data, offset, order = out.read_bytes(), 0, []
    while offset < len(data):
        size, kind = struct.unpack(">I4s", data[offset : offset + 8])
        order.append(kind)
        offset += size
    assert order.index(b"moov") < order.index(b"mdat")


def test_colours_stay(out: Path) -> None:
    """Red in, red out, by the colour tags the file carries."""
    annotate(lavfi("red.mp4", "color=red:s=160x120:r=30:d=0.1", "-pix_fmt", "yuv420p"), out, keyframes=[])
    assert np.abs(frames_of(out)[0][0].astype(int) - (255, 0, 0)).max() <= 6


def test_stopping_leaves_nothing_behind(out: Path) -> None:
    """A cancelled run has no half video."""
    stop = threading.Event()
    stop.set()
    annotate(grey(), out, keyframes=[], stop=stop)
    assert list(out.parent.iterdir()) == []


@pytest.mark.fault("V9")
def test_a_source_that_is_no_video_leaves_nothing_behind(out: Path) -> None:
    """The error is the source's."""
    with pytest.raises(VideoError):
        annotate(folder() / "missing.mp4", out, keyframes=[])
    assert list(out.parent.iterdir()) == []


def test_an_output_that_cannot_be_written_is_our_error(tmp_path: Path) -> None:
    """No folder, or a folder in its place: said with the name, nothing left."""
    with pytest.raises(ResultsError, match=r"nowhere/a\.mp4"):
        annotate(grey(), tmp_path / "nowhere" / "a.mp4", keyframes=[])
    (tmp_path / "b.mp4").mkdir()
    with pytest.raises(ResultsError, match=r"b\.mp4"):
        annotate(grey(), tmp_path / "b.mp4", keyframes=[])
    assert [path.name for path in tmp_path.iterdir()] == ["b.mp4"]


@pytest.mark.fault("V13")
def test_an_odd_name_is_only_a_name(tmp_path: Path) -> None:
    """Accents, quotes, per cent signs and colons."""
    out = tmp_path / "concat:é 'a' %05d #.mp4"
    annotate(grey(), out, keyframes=[])
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
