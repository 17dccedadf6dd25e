"""What `zroact probe` finds in files: the truth of each, what is odd about it, and what a run makes of it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import load_config
from pipeline_ver2.errors import VideoError
from pipeline_ver2.file_report import FileReport, PlanPart, ReadPart, VideoPart
from pipeline_ver2.main import FrameExtractor
from pipeline_ver2.probe_report import probe_file
from tests.scenes import copied, film
from tests.videos import base, cut, damaged, ffmpeg, folder, lavfi

CONFIG = load_config(None, {}, environ={})
H264 = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-colorspace", "bt709")


def probed(path: Path, *, full: bool = False, **overrides: object) -> tuple[FileReport, VideoPart, ReadPart, PlanPart]:
    """A usable file's report and its parts."""
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    report = probe_file(path, load_config(None, dotted, environ={}), full=full)
    assert report.usable, report.reason
    assert report.video is not None
    assert report.read is not None
    assert report.plan is not None
    return report, report.video, report.read, report.plan


def long_film() -> Path:
    """Twelve seconds, more than is read by default."""
    return lavfi("twelve.mp4", "testsrc2=s=64x48:r=30:d=12", *H264, "-g", "30")


def test_a_plain_file_is_told_as_it_is() -> None:
    """Size, rate, length and counts; nothing is odd about it."""
    plain = film("plain709.mp4", *H264)
    report, video, read, plan = probed(plain.path)
    assert (video.codec, video.stored, video.shown, video.rotation) == ("h264", (160, 120), (160, 120), 0)
    assert (video.fps, video.frames, video.timestamps, video.start_s) == (30, 60, "container", 0)
    assert video.duration_s == pytest.approx(2)
    assert (read.frames, read.whole, read.variable, read.damaged) == (60, True, False, ())
    assert read.fps == pytest.approx(30, abs=0.01)
    assert (plan.frames_grid, plan.keyframes, plan.batches, plan.slots) == (60, 5, 2, 2)
    assert (plan.state, plan.estimated, plan.annotated) == ("succeeded", False, (160, 120))
    assert report.odd == ()
    assert report.audio is None
    assert report.size_bytes == plain.path.stat().st_size


@pytest.mark.parametrize("rate", ["10", "24000/1001", "60"])
def test_the_plan_is_what_extraction_gives(rate: str) -> None:
    """Counts of a file that is read whole are those of a run."""
    fps = Fraction(rate)
    path = film(f"plan{float(fps):.2f}.mp4", *H264, rate=fps, frames=int(fps * 2)).path
    with FrameExtractor(path, grid_fps=30, keyframe_interval=11, model_size=(32, 32)) as extractor:
        frames = list(extractor)
    plan = probed(path)[3]
    assert plan.frames_grid == len(frames)
    assert plan.keyframes == sum(frame.key_index is not None for frame in frames)


def test_of_a_long_file_the_first_seconds_are_read_and_the_rest_is_estimated() -> None:
    """Bounded by default; all of it when asked."""
    _, _, read, plan = probed(long_film())
    assert not read.whole
    assert read.seconds == pytest.approx(10)
    assert (read.frames, plan.frames_grid, plan.estimated) == (301, 360, True)
    _, _, read, plan = probed(long_film(), full=True)
    assert (read.whole, read.frames, plan.frames_grid, plan.estimated) == (True, 360, 360, False)


def test_damage_past_the_first_seconds_is_found_when_all_is_read() -> None:
    """The state that will result is partial; before, it is said that the rest was not read."""
    path = damaged("late-damage.mp4", long_film(), at=0.9, size=1500)
    report, _, _, plan = probed(path)
    assert (plan.state, plan.estimated) == ("succeeded", True)
    assert "if nothing after the part that was decoded is damaged" in report.as_text()
    report, _, read, plan = probed(path, full=True)
    assert plan.state == "partial"
    ((start, end),) = read.damaged
    assert 10 < start < end
    assert any(f"damaged from {start:.2f} s" in sentence for sentence in report.odd)


def told(path: Path, **overrides: Any) -> str:  # noqa: ANN401 - settings of any kind
    """All that is odd, in one text."""
    return " ".join(probed(path, **overrides)[0].odd)


@pytest.mark.fault("V1")
def test_rotation_and_mirrors_are_told() -> None:
    """Which way it is stored, and what is done about it."""
    plain = film("plain709.mp4", *H264)
    turned = copied("turned-probe.mp4", plain, before=("-display_rotation", "90"))
    report, video, _, plan = probed(turned.path)
    assert (video.stored, video.shown, video.rotation, plan.annotated) == ((160, 120), (120, 160), 270, (120, 160))
    assert any("turned by 270 degrees" in sentence for sentence in report.odd)
    mirrored = copied("mirrored-probe.mp4", plain, before=("-display_hflip",))
    assert probed(mirrored.path)[1].mirrored
    assert "mirror" in told(mirrored.path)
    assert not probed(turned.path)[1].mirrored


@pytest.mark.fault("V2")
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_a_varying_frame_rate_is_told_and_rounding_is_none(container: str) -> None:
    """Gaps of 33 and 167 ms vary; 33 and 34 ms of a millisecond clock do not."""
    kept = (*range(30), *range(30, 60, 5))
    path = film(f"vary-probe.{container}", *H264, kept=kept).path
    read = probed(path)[2]
    assert read.variable
    assert (read.shortest_gap_s, read.longest_gap_s) == pytest.approx((1 / 30, 1 / 6), abs=0.001)
    assert "33 to 167 ms apart" in told(path)
    assert not probed(film(f"steady-probe.{container}", *H264).path)[2].variable


@pytest.mark.fault("V4")
def test_missing_timestamps_are_told() -> None:
    """A bare stream: rate from the stream, no length."""
    report, video, _, _ = probed(film("bare-probe.h264", *H264).path)
    assert (video.timestamps, video.fps, video.duration_s, video.frames) == ("estimated", 30, None, None)
    assert any("no timestamps" in sentence for sentence in report.odd)


@pytest.mark.fault("V5")
def test_a_late_start_is_told() -> None:
    """Where the first frame is in the file."""
    late = copied("late-probe.mkv", film("plain709.mp4", *H264), before=("-itsoffset", "5"))
    report, video, _, _ = probed(late.path)
    assert video.start_s == pytest.approx(5, abs=0.001)
    assert "first frame is at 5.000 s" in " ".join(report.odd)


@pytest.mark.fault("V6")
def test_a_file_that_is_cut_off_is_told_without_reading_it_all() -> None:
    """The index names bytes that are not there."""
    whole = ffmpeg("front-long.mp4", "-i", str(long_film()), "-c", "copy", "-movflags", "+faststart")
    path = cut("cut-probe.mp4", whole, 0.95)
    report, _, read, _ = probed(path)
    assert not read.whole
    assert any("It is cut off" in sentence for sentence in report.odd)
    assert "cut off" not in told(whole)


@pytest.mark.fault("V9")
def test_what_cannot_be_used_is_told_with_the_reason(tmp_path: Path) -> None:
    """Not raised: the reason is the report."""
    (tmp_path / "text.mp4").write_text("no video")
    for path in (tmp_path / "text.mp4", tmp_path / "missing.mp4", tmp_path):
        report = probe_file(path, CONFIG)
        with pytest.raises(VideoError) as caught:
            FrameExtractor(path, grid_fps=30, keyframe_interval=11, model_size=(32, 32))
        assert (report.usable, report.reason, report.plan) == (False, str(caught.value), None)
        assert "not usable" in report.as_text()


@pytest.mark.fault("V10")
def test_a_short_file_is_told() -> None:
    """One keyframe, and a clip that repeats its first frame."""
    path = film("seven-probe.mp4", *H264, frames=7).path
    assert probed(path)[3].keyframes == 1
    assert "only keyframe" in told(path)
    assert "first frame is repeated" in told(path)
    assert "only keyframe" not in told(path, pipeline__keyframe_interval=5)


@pytest.mark.fault("V11")
def test_odd_sizes_and_pixels_are_told() -> None:
    """Padded to even in the annotated video; ten bits become eight."""
    codec = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv444p10le")
    path = film("odd-probe.mkv", *codec, size=(161, 121)).path
    report, video, _, plan = probed(path)
    assert (video.pixel_format, video.stored, plan.annotated) == ("yuv444p10le", (161, 121), (162, 122))
    assert "padded to 162x122" in " ".join(report.odd)
    assert "converted to 8 bits" in " ".join(report.odd)


@pytest.mark.fault("V13")
def test_an_odd_name_is_shown_escaped() -> None:
    """No character of a name does anything to a terminal."""
    path = folder() / "bell\a\x1b[31mred\nline.mp4"
    path.write_bytes(base().read_bytes())
    text = probe_file(path, CONFIG).as_text()
    assert text.startswith(r"bell\x07\x1b[31mred\nline.mp4: usable")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("sar.mp4", ("-vf", "setsar=4/3"), "not square (4:3)"),
        ("hdr.ts", ("-bsf:v", "h264_metadata=transfer_characteristics=18"), "HLG"),
        ("laced.mp4", ("-vf", "tinterlace=interleave_top", "-flags", "+ilme+ildct"), "interlaced"),
        ("lie.avi", ("-f", "matroska"), "Its name ends in .avi"),
        ("fast.mp4", ("-r", "60"), "more than 30 frames a second"),
        ("slow.mp4", ("-r", "10"), "fewer than 30 frames a second"),
        ("untagged.mp4", ("-colorspace", "unknown"), "does not name its colour matrix"),
    ],
)
def test_each_oddity_has_its_sentence(name: str, arguments: tuple[str, ...], words: str) -> None:
    """What is odd about a file is said in words; of the plain one beside it nothing is."""
    path = lavfi(f"odd-{name}", "testsrc2=s=160x120:r=30:d=1", *H264, *arguments)
    assert words in told(path)


@pytest.mark.parametrize(
    ("codec", "becomes"),
    [("aac", "copied"), ("pcm_s16le", "encoded again as AAC"), ("libvorbis", "encoded again as AAC")],
)
def test_audio_is_told_with_what_becomes_of_it(codec: str, becomes: str) -> None:
    """As the annotated video has it."""
    sources = ("-f", "lavfi", "-i", "testsrc2=s=160x120:r=30:d=1", "-f", "lavfi", "-i", "sine=d=1")
    report = probed(ffmpeg(f"sound-{codec}.mkv", *sources, *H264, "-c:a", codec))[0]
    assert report.audio is not None
    assert (report.audio.channels, report.audio.rate, report.audio.annotated) == (1, 44_100, becomes)
    assert ("audio" in " ".join(report.odd)) == (becomes != "copied")


def test_limits_of_the_job_api_are_told() -> None:
    """What would be refused on upload is said beforehand."""
    path = film("plain709.mp4", *H264).path
    assert "serving.limits.seconds" in told(path, serving__limits__seconds=1)
    assert "serving.limits" not in told(path)


def test_the_report_goes_through_json() -> None:
    """What is written can be read again."""
    report = probe_file(film("plain709.mp4", *H264).path, CONFIG)
    assert FileReport.model_validate_json(report.model_dump_json()) == report
