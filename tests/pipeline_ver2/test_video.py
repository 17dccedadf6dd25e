"""Probing and reading of videos: every fault of the files that this layer answers for."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from pipeline_ver2.main import VideoInfo
from pipeline_ver2.video import Damage, ExtractionReport, Timeline, VideoReader
from tests.videos import base, cut, damaged, ffmpeg, first_picture, folder, lavfi, number_of, numbered, steady

THIRTY_FPS = steady(30, 2)


def raw() -> Path:
    """An H.264 stream without a container, which says 30 frames/s itself."""
    steady_rate = ffmpeg("steady.mp4", "-i", str(base()), "-r", "30", "-crf", "12")
    return ffmpeg("raw.h264", "-i", str(steady_rate), "-c", "copy", "-bsf:v", "h264_mp4toannexb")


def read(path: Path, threads: int = 1) -> tuple[list[int], list[float], VideoInfo, ExtractionReport]:
    """Numbers and times of all frames, with what was said about the file."""
    numbers, times = [], []
    with VideoReader(path, threads=threads) as reader:
        while (frame := reader.next_frame()) is not None:
            numbers.append(number_of(reader.rgb(frame.picture)))
            times.append(float(frame.time))
        return numbers, times, reader.info, reader.report


def test_every_frame_comes_once_in_order_with_its_time() -> None:
    """B-frames and all: frame k is number k at k/30 s."""
    numbers, times, _, report = read(base())
    assert numbers == list(range(60))
    assert times == pytest.approx([float(time) for time in THIRTY_FPS], abs=1e-5)
    assert (report.frames_decoded, report.damaged, report.warnings) == (60, [], [])
    assert report.fps == pytest.approx(30)


@pytest.mark.fault("V2")
def test_variable_frame_rate_keeps_presentation_times() -> None:
    """Times are the file's own, not index / rate."""
    times = (*steady(30, 1), *(1 + Fraction(number, 6) for number in range(6)))
    numbers, found, info, report = read(numbered("variable.mp4", times))
    assert numbers == list(range(36))
    assert found == pytest.approx([float(time) for time in times], abs=1e-5)
    assert info.timestamps == "container"
    assert report.warnings == []


@pytest.mark.fault("V4")
def test_without_timestamps_times_are_index_by_rate() -> None:
    """A raw H.264 stream is flagged and told."""
    numbers, times, info, report = read(raw())
    assert numbers == list(range(60))
    assert times == pytest.approx([number / 30 for number in range(60)])
    assert (info.timestamps, info.duration_s, info.fps) == ("estimated", None, 30)
    assert report.warnings == ["no timestamps in the file; times are estimated at 30 frames/s"]


@pytest.mark.fault("V4")
def test_avi_frames_come_in_order_with_growing_times() -> None:
    """AVI stores decode order only; B-frames must not make times go back and frames be dropped."""
    numbers, times, _, report = read(ffmpeg("base.avi", "-i", str(base()), "-c", "copy"))
    assert numbers == list(range(60))
    assert times == pytest.approx([number / 30 for number in range(60)], abs=0.002)
    assert report.warnings == []


@pytest.mark.fault("V5")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("late.ts", ("-i", "{}", "-c", "copy", "-output_ts_offset", "5")),
        ("late.mkv", ("-itsoffset", "5", "-i", "{}", "-c", "copy")),
        ("late.mp4", ("-itsoffset", "5", "-i", "{}", "-c", "copy", "-copyts")),
    ],
)
def test_time_0_is_the_first_frame(name: str, arguments: tuple[str, ...]) -> None:
    """A start time of the container does not move the video's own time."""
    numbers, times, info, report = read(ffmpeg(name, *(argument.format(base()) for argument in arguments)))
    assert numbers == list(range(60))
    assert times == pytest.approx([number / 30 for number in range(60)], abs=0.001)
    assert info.duration_s == pytest.approx(2, abs=0.05)
    assert report.warnings == []


@pytest.mark.fault("V6")
def test_a_copied_cut_counts_what_is_decoded_and_warns_of_nothing() -> None:
    """Frames the container itself leaves out of its edit are no shortfall."""
    path = ffmpeg("ss.mp4", "-ss", "0.5", "-i", str(base()), "-c", "copy")
    numbers, times, info, report = read(path)
    assert numbers == list(range(15, 60))
    assert times[0] == 0
    assert info.frames_header == 60
    assert (report.warnings, report.damaged) == ([], [])


@pytest.mark.fault("V6")
def test_a_large_shortfall_against_the_header_is_a_warning() -> None:
    """The first 60 % of a file whose index is at the front."""
    whole = ffmpeg("front.mp4", "-i", str(base()), "-c", "copy", "-movflags", "+faststart")
    numbers, _, _, report = read(cut("front60.mp4", whole, 0.6))
    assert 10 < len(numbers) < 54
    assert numbers == list(range(len(numbers)))
    assert report.warnings == [f"the header promises 60 frames, {len(numbers)} are there"]


@pytest.mark.fault("V6")
def test_a_cut_matroska_is_measured_by_its_duration() -> None:
    """Matroska has no frame count; its DURATION tag tells the shortfall."""
    whole = ffmpeg("whole.mkv", "-i", str(base()), "-c", "copy", "-cluster_time_limit", "200")
    _, times, info, report = read(cut("cut.mkv", whole, 0.6))
    assert info.duration_s == pytest.approx(2, abs=0.01)
    assert times[-1] < 1.7
    assert any("the header promises 2.00 s" in warning for warning in report.warnings)


@pytest.mark.fault("V6")
def test_live_webm_without_duration_is_read_to_its_end() -> None:
    """No duration and no count in the header: unknown, nothing missing."""
    path = ffmpeg("live.webm", "-i", str(base()), "-c:v", "libvpx", "-live", "1", "-deadline", "realtime")
    numbers, _, info, report = read(path)
    assert len(numbers) == 60
    assert (info.duration_s, info.frames_header, report.warnings) == (None, None, [])


@pytest.mark.fault("V7")
@pytest.mark.parametrize("rate", [1000, 90_000])
def test_a_senseless_rate_in_the_header_is_passed_over(rate: int) -> None:
    """A file that says 1000 or 90000 frames/s and shows 25."""
    path = numbered(f"rate{rate}.mkv", steady(25, 1), rate=rate)
    numbers, times, info, report = read(path)
    assert info.fps == pytest.approx(25)
    assert numbers == list(range(25))
    assert times == pytest.approx([number / 25 for number in range(25)], abs=0.001)
    assert report.fps == pytest.approx(25, rel=0.01)


def patched(name: str, source: Path, mark: bytes, offset: int, value: bytes) -> Path:
    """A copy with `value` written `offset` bytes after the first place of `mark`."""
    data = bytearray(source.read_bytes())
    place = data.index(mark) + len(mark) + offset
    data[place : place + len(value)] = value
    path = folder() / name
    path.write_bytes(data)
    return path


@pytest.mark.fault("V7")
@pytest.mark.parametrize("count", [0xFFFFFFFF, 0x7FFFFFFF, 0])
def test_a_senseless_count_in_the_header_is_passed_over(count: int) -> None:
    """An AVI whose stream header has -1, billions or no frames: unknown, nothing is missing, nothing takes long."""
    source = ffmpeg("counted.avi", "-i", str(base()), "-c", "copy")
    value = count.to_bytes(4, "little")
    path = patched(f"count{count}.avi", patched(f"main{count}.avi", source, b"avih", 20, value), b"strh", 36, value)
    numbers, _, info, report = read(path)
    assert numbers == list(range(60))
    assert info.frames_header in {None, 60}
    assert report.warnings == []


@pytest.mark.fault("V7")
@pytest.mark.parametrize("duration", [float("nan"), float("inf"), -1.0, 1e15])
def test_a_senseless_duration_in_the_header_is_passed_over(duration: float) -> None:
    """A Matroska file that lasts for NaN, for ever, or less than nothing."""
    source = ffmpeg("lasting.mkv", "-i", str(base()), "-c", "copy")
    untagged = patched("untagged.mkv", source, b"", source.read_bytes().index(b"DURATION"), b"OTHERTAG")
    path = patched(f"lasts{duration}.mkv", untagged, b"\x44\x89\x88", 0, struct.pack(">d", duration))
    numbers, _, info, report = read(path)
    assert numbers == list(range(60))
    assert info.duration_s is None or info.duration_s == pytest.approx(2, abs=0.05)
    assert report.warnings == []


@pytest.mark.fault("V8")
@pytest.mark.parametrize("threads", [1, 3])
def test_damage_in_the_middle_is_reported_and_decoding_goes_on(threads: int) -> None:
    """6,000 bytes overwritten: whole before and after, the range between told, the same every time."""
    whole = lavfi("six.mp4", "testsrc2=s=160x120:r=30:d=6", "-pix_fmt", "yuv420p", "-g", "30", "-threads", "1")
    path = damaged("damaged.mp4", whole, at=0.4, size=6000)
    _, times, _, report = read(path, threads)
    ((start, end),) = report.damaged
    assert 1.5 < start < 3
    assert start < end <= start + 2
    assert times[-1] == pytest.approx(179 / 30)
    missing = [n for n in range(180) if n not in {round(time * 30) for time in times}]
    assert missing
    assert all(start * 30 - 0.5 <= n <= end * 30 for n in missing)
    assert read(path, threads)[1] == times


@pytest.mark.fault("V8")
def test_a_sound_file_has_no_damage() -> None:
    """The same file untouched reports nothing."""
    whole = lavfi("six.mp4", "testsrc2=s=160x120:r=30:d=6", "-pix_fmt", "yuv420p", "-g", "30", "-threads", "1")
    assert read(whole)[3].damaged == []


@pytest.mark.fault("V8")
@pytest.mark.parametrize("threads", [1, 4])
def test_damage_at_the_end_is_closed_by_the_end(threads: int) -> None:
    """A last packet cut in half is a damaged range, not plain success; more threads lose no more frames."""
    whole = ffmpeg("front.mp4", "-i", str(base()), "-c", "copy", "-movflags", "+faststart")
    path = folder() / "tail.mp4"
    path.write_bytes(whole.read_bytes()[:-40])
    numbers, _, _, report = read(path, threads)
    assert len(numbers) > 50
    assert numbers == read(path)[0]
    assert report.damaged == read(path)[3].damaged != []
    assert report.damaged[-1][1] >= 59 / 30


def test_damage_ends_at_the_next_whole_intra_frame() -> None:
    """A range opens at the earliest bad frame and closes at the first key frame after the latest."""
    ranges: list[tuple[float, float]] = []
    damage = Damage(ranges)
    damage.clean_key(Fraction(0))
    damage.hit(Fraction(2))
    damage.hit(Fraction(1))
    damage.clean_key(Fraction(2))
    assert ranges == []
    damage.clean_key(Fraction(3))
    damage.hit(Fraction(5))
    damage.close(Fraction(4))
    assert ranges == [(1, 3), (5, 5)]


@pytest.mark.fault("V11")
@pytest.mark.parametrize("pixels", ["yuv444p", "yuv422p", "yuv420p10le", "yuv444p10le", "gray"])
def test_odd_sizes_and_other_pixel_formats_are_read(pixels: str) -> None:
    """321x241 in 4:4:4, 4:2:2, 10 bits and grey becomes RGB of that size."""
    name = f"odd-{pixels}.mkv"
    filters = f"scale=321:241,format={pixels}"
    codec = ("-c:v", "ffv1") if pixels.startswith(("yuv422", "yuv420")) else ()  # libx264 wants even sizes there
    path = lavfi(name, "color=gray:s=320x240:r=30:d=0.1", "-vf", filters, "-sws_flags", "neighbor", *codec)
    picture = first_picture(path)
    assert picture.shape == (241, 321, 3)
    assert picture.dtype == np.uint8
    assert picture.flags.c_contiguous
    assert np.abs(picture.astype(int) - 128).max() <= 4


@pytest.mark.parametrize(
    ("matrix", "tag", "span"),
    [("bt601", "smpte170m", "tv"), ("bt601", "smpte170m", "pc"), ("bt709", "bt709", "tv"), ("bt709", "bt709", "pc")],
)
def test_red_is_red_in_every_colour_matrix_and_range(matrix: str, tag: str, span: str) -> None:
    """A solid red frame comes out within 6 levels of (255, 0, 0)."""
    filters = f"scale=out_color_matrix={matrix}:out_range={span},format=yuv420p"
    options = ("-vf", filters, "-colorspace", tag, "-color_range", span, "-crf", "5")
    picture = first_picture(lavfi(f"red-{matrix}-{span}.mp4", "color=red:s=160x120:r=30:d=0.1", *options))
    assert np.abs(picture.astype(int) - (255, 0, 0)).max() <= 6


def test_a_colour_matrix_nobody_converts_is_read_as_the_usual_one() -> None:
    """ICtCp in the header of a plain file is a warning, not a failure."""
    red = lavfi("red.mp4", "color=red:s=160x120:r=30:d=0.1", "-pix_fmt", "yuv420p")
    _, _, _, report = read(
        ffmpeg("ictcp.mp4", "-i", str(red), "-c", "copy", "-bsf:v", "h264_metadata=matrix_coefficients=14")
    )
    assert report.warnings == ["the colour matrix is not supported; colours were read as BT.601"]


def test_a_size_that_changes_is_scaled_to_the_first() -> None:
    """Boxes refer to one size; a change in the stream is told."""
    small = lavfi("small.ts", "color=red:s=160x120:r=30:d=0.2", "-pix_fmt", "yuv420p")
    large = lavfi("large.ts", "color=red:s=320x240:r=30:d=0.2", "-pix_fmt", "yuv420p")
    path = folder() / "changing.ts"
    path.write_bytes(small.read_bytes() + large.read_bytes())
    with VideoReader(path) as reader:
        shapes = []
        while (frame := reader.next_frame()) is not None:
            shapes.append(reader.rgb(frame.picture).shape)
        assert set(shapes) == {(120, 160, 3)}
        assert len(shapes) >= 11
        assert any("frame size changes" in warning for warning in reader.report.warnings)


MILLISECOND = Fraction(1, 1000)


def place_all(stamps: list[int | None], *, estimated: bool = False) -> tuple[list[float | None], Timeline]:
    timeline = Timeline(MILLISECOND, Fraction(1, 25), estimated=estimated)
    times = [timeline.place(stamp) for stamp in stamps]
    return [None if time is None else float(time) for time in times], timeline


def test_repeated_and_earlier_timestamps_drop_the_frame() -> None:
    """Times only grow; what does not fit is dropped and counted."""
    times, timeline = place_all([100, 140, 140, 120, 180])
    assert times == [0, 0.04, None, None, 0.08]
    assert timeline.repeated == 2


def test_missing_timestamps_are_placed_by_the_rate() -> None:
    """A frame without a timestamp follows the one before it; the first may lack one too."""
    times, timeline = place_all([None, 40, None, 120])
    assert times == [0, 0.04, 0.08, 0.12]
    assert timeline.missing == 2


@pytest.mark.parametrize("second", [0, 10_000_000])
def test_a_jump_starts_a_new_timeline_that_goes_on(second: int) -> None:
    """A recording whose clock restarts or leaps keeps all its frames and fills no hours with one."""
    times, timeline = place_all([5000, 5040, second, second + 40])
    assert times == [0, 0.04, 0.08, 0.12]
    assert timeline.jumps == 1


def test_a_long_pause_is_no_jump() -> None:
    """A still screen for a minute is real."""
    assert place_all([0, 60_000])[0] == [0, 60]


def test_nothing_placed_is_time_0() -> None:
    """Before the first frame there is only 0."""
    timeline = Timeline(MILLISECOND, Fraction(1, 25), estimated=False)
    assert [timeline.expected, timeline.origin, timeline.locate(7)] == [Fraction(0)] * 3


def test_estimated_times_ignore_timestamps() -> None:
    """What a demuxer makes up counts for nothing."""
    assert place_all([7, 7, None, -3], estimated=True)[0] == [0, 0.04, 0.08, 0.12]


def test_a_closed_reader_has_released_the_file() -> None:
    """Closing half-way, and twice, is fine."""
    reader = VideoReader(base())
    assert reader.next_frame() is not None
    reader.close()
    reader.close()
    assert not [entry for entry in Path("/proc/self/fd").iterdir() if entry.exists() and entry.resolve() == base()]


def test_after_the_end_there_is_nothing_more() -> None:
    """Asking again returns None and repeats no warning."""
    with VideoReader(raw()) as reader:
        while reader.next_frame() is not None:
            pass
        assert reader.next_frame() is None
        assert len(reader.report.warnings) == 1
