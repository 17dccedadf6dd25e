"""Drawn films through both stages and back into a video: each result belongs to the frame it names."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import av
import pytest
from _pytest.mark import ParameterSet

from pipeline_ver2.command import boxes_of
from pipeline_ver2.config import load_config
from pipeline_ver2.job import Job
from pipeline_ver2.overlay import annotate
from pipeline_ver2.painting import Between
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import Results
from tests.scenes import Film, box_of, copied, film, number_in
from tests.seeing import THRESHOLD, WITHIN_PX, check_results, check_video, pixels_of, seeing_stages, seen
from tests.videos import damaged

H264 = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "12", "-pix_fmt", "yuv420p", "-g", "15")
HEVC = ("-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=error:bframes=2", "-crf", "12")
VP8 = ("-c:v", "libvpx", "-deadline", "realtime", "-cpu-used", "8", "-b:v", "2M")
VP9 = ("-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", "8", "-crf", "20", "-b:v", "0")
VP9_HIDDEN = ("-c:v", "libvpx-vp9", "-cpu-used", "5", "-crf", "20", "-b:v", "0", "-auto-alt-ref", "1")
MPEG4 = ("-c:v", "mpeg4", "-q:v", "2", "-bf", "2")
MPEG2 = ("-c:v", "mpeg2video", "-q:v", "2", "-bf", "2")
MJPEG = ("-c:v", "mjpeg", "-q:v", "2", "-pix_fmt", "yuvj420p")
TEN_BITS = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "12", "-pix_fmt", "yuv420p10le")
FULL_CHROMA = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "12", "-pix_fmt", "yuv444p")
INTERLACED = (*H264, "-flags", "+ilme+ildct", "-x264opts", "tff=1")

VARIABLE = (*range(30), *range(30, 60, 5))
"""One second whole, then every fifth frame."""

CONTAINERS = {
    "plain.mp4": H264,
    "plain.mkv": H264,
    "plain.avi": H264,
    "vp8.webm": VP8,
    "mpeg4.avi": MPEG4,
    "mjpeg.mov": MJPEG,
    "plain.ts": H264,
    "plain.h264": H264,
    "hevc.mp4": (*HEVC, "-tag:v", "hvc1"),
}
MORE_CONTAINERS = {
    "plain.mov": H264,
    "plain.flv": H264,
    "plain.3gp": H264,
    "plain.m2ts": H264,
    "fragmented.mp4": (*H264, "-movflags", "frag_keyframe+empty_moov"),
    "vp9.webm": VP9,
    "hidden.webm": VP9_HIDDEN,
    "mjpeg.avi": MJPEG,
    "mpeg2.ts": MPEG2,
    "mpeg2.mpg": MPEG2,
    "mpeg2.mxf": ("-c:v", "mpeg2video", "-q:v", "2"),
    "plain.hevc": HEVC,
    "ten.mkv": (*HEVC, "-pix_fmt", "yuv420p10le"),
    "prores.mov": ("-c:v", "prores", "-pix_fmt", "yuv422p10le"),
    "rle.mov": ("-c:v", "qtrle", "-pix_fmt", "rgb24"),
    "wmv.wmv": ("-c:v", "wmv2", "-q:v", "2"),
    "theora.ogv": ("-c:v", "libtheora", "-q:v", "9"),
    "av1.mp4": ("-c:v", "libaom-av1", "-cpu-used", "8", "-usage", "realtime", "-crf", "20"),
    "lossless.avi": ("-c:v", "ffv1"),
    "raw.y4m": ("-pix_fmt", "yuv420p"),
    "interlaced.ts": INTERLACED,
    "ten.mp4": TEN_BITS,
}


def slow(*values: str) -> list[ParameterSet]:
    """Parameters of the slow tests."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


async def run(film: Film, folder: Path, **overrides: object) -> Results:
    """The film through the orchestrator and stages that see."""
    async with seeing_stages() as stages:
        settings = {**stages.overrides(), "stage1.threshold": THRESHOLD, **overrides}
        return await run_pipeline(Job(film.path, folder), load_config(None, settings, environ={}))


async def check(film: Film, folder: Path, between: Between = "hold", warnings: list[str] | None = None) -> Results:
    """The film there and back: results and video belong to the frames they name."""
    results = await run(film, folder)
    assert results.state == "succeeded"
    assert list(results.warnings) == (warnings or [])
    check_results(film, results)
    video = folder / "annotated.mp4"
    assert annotate(film.path, video, keyframes=boxes_of(results), between=between) == list(results.warnings)
    check_video(film, results, video, moved=between == "interpolate")
    return results


def told(name: str, rate: Fraction) -> list[str]:
    """What is to be said of a stream without a container."""
    bare = name.endswith((".h264", ".hevc"))
    return [f"no timestamps in the file; times are estimated at {float(rate):g} frames/s"] if bare else []


@pytest.mark.fault("V4")
@pytest.mark.parametrize("name", CONTAINERS)
async def test_every_container_and_codec(name: str, tmp_path: Path) -> None:
    """The frame shown, its time and the person's box are those of the keyframe that is named."""
    await check(film(name, *CONTAINERS[name]), tmp_path, warnings=told(name, Fraction(30)))


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_CONTAINERS)
async def test_more_containers_and_codecs(name: str, tmp_path: Path) -> None:
    """What phones, cameras, browsers, editors and old programs write."""
    await check(film(name, *MORE_CONTAINERS[name]), tmp_path, warnings=told(name, Fraction(30)))


@pytest.mark.fault("V1")
@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("container", ["mp4", *slow("mov", "mkv")])
async def test_rotations(turns: int, container: str, tmp_path: Path) -> None:
    """Stored on the side, shown upright: boxes and the video's size are those of the upright frame."""
    stored = film(f"stored{turns}.mp4", *H264, turned=turns)
    lying = copied(f"turned{turns}.{container}", stored, before=("-display_rotation", str(-90 * turns)))
    results = await check(lying, tmp_path)
    assert (results.video.width, results.video.height, results.video.rotation) == (160, 120, 90 * turns)


RATES = ("10", "15", "24", "25", "30000/1001", "50", "60")


@pytest.mark.fault("V3")
@pytest.mark.parametrize("rate", RATES)
async def test_frame_rates(rate: str, tmp_path: Path) -> None:
    """The same moments are keyframes, whatever the rate, on the 30 a second of the grid."""
    fps = Fraction(rate)
    await check(film(f"rate{float(fps):.2f}.mp4", *H264, rate=fps, frames=int(fps * 2)), tmp_path)


@pytest.mark.slow
@pytest.mark.fault("V3")
@pytest.mark.parametrize("container", ["mkv", "ts", "h264", "avi"])
@pytest.mark.parametrize("rate", ["15", "24000/1001", "30000/1001", "60", "25/2", "120"])
async def test_frame_rates_in_other_containers(rate: str, container: str, tmp_path: Path) -> None:
    """Milliseconds, ninety-thousandths, frame counts and no times at all."""
    fps = Fraction(rate)
    name = f"rate{float(fps):.2f}.{container}"
    await check(film(name, *H264, rate=fps, frames=int(fps * 2)), tmp_path, warnings=told(name, fps))


@pytest.mark.fault("V2")
@pytest.mark.parametrize("name", ["variable.mp4", "variable.mkv", *slow("variable.ts", "variable.webm")])
async def test_variable_frame_rates(name: str, tmp_path: Path) -> None:
    """Frames left out by the recorder: what is shown and when are the file's own, in the video too."""
    codec = VP8 if name.endswith("webm") else H264
    await check(film(name, *codec, kept=VARIABLE), tmp_path)


@pytest.mark.fault("V2")
async def test_frames_an_avi_leaves_out_are_told(tmp_path: Path) -> None:
    """AVI counts places, not frames; the rest is right all the same."""
    says = ["the header promises 56 frames, 36 are there"]
    await check(film("variable.avi", *MPEG4[:4], kept=VARIABLE), tmp_path, warnings=says)


@pytest.mark.fault("V5")
async def test_start_times(tmp_path: Path) -> None:
    """Whatever the container calls the first frame, it is time 0, in results and video."""
    plain = film("plain.mp4", *H264)
    for number, late in enumerate(
        (
            copied("late.ts", plain, "-output_ts_offset", "5"),
            copied("late.mkv", plain, before=("-itsoffset", "5")),
            copied("late.mp4", plain, "-copyts", before=("-itsoffset", "5")),
        )
    ):
        await check(late, tmp_path / str(number))


@pytest.mark.fault("V6")
async def test_a_cut_by_copy_begins_where_it_is_shown_to_begin(tmp_path: Path) -> None:
    """An editor's cut keeps frames before the cut that are never shown."""
    plain = film("plain.mp4", *H264)
    await check(copied("cut.mp4", plain, before=("-ss", "0.7"), dropped=21), tmp_path)


@pytest.mark.fault("V10")
@pytest.mark.parametrize("frames", [1, 7, 11])
@pytest.mark.parametrize("container", ["mp4", *slow("webm", "h264")])
async def test_short_films(frames: int, container: str, tmp_path: Path) -> None:
    """One keyframe, and it is the last frame or the eleventh."""
    name, codec = f"short{frames}.{container}", VP8 if container == "webm" else H264
    await check(film(name, *codec, frames=frames), tmp_path, warnings=told(name, Fraction(30)))


@pytest.mark.fault("V11")
@pytest.mark.parametrize(
    ("name", "codec"), [("odd444.mkv", FULL_CHROMA), ("odd.avi", MPEG4), ("odd.webm", VP9), ("ten.mp4", TEN_BITS)]
)
async def test_odd_sizes_and_pixel_formats(name: str, codec: tuple[str, ...], tmp_path: Path) -> None:
    """161x121, full chroma, ten bits: boxes in the source's pixels, the video padded."""
    await check(film(name, *codec, size=(160, 120) if name == "ten.mp4" else (161, 121)), tmp_path)


@pytest.mark.parametrize("name", ["plain.mp4", *slow("variable.mkv", "rate10.00.mp4")])
async def test_boxes_on_their_way_between_keyframes(name: str, tmp_path: Path) -> None:
    """Interpolated, a box is where the person is on the way from one keyframe to the next."""
    films = {
        "plain.mp4": film("plain.mp4", *H264),
        "variable.mkv": film("variable.mkv", *H264, kept=VARIABLE),
        "rate10.00.mp4": film("rate10.00.mp4", *H264, rate=Fraction(10), frames=20),
    }
    await check(films[name], tmp_path, "interpolate")


APPEARS = (*range(15, 50), *range(130, 170))
"""The person is there twice in six seconds."""


@pytest.mark.fault("V8")
async def test_events_on_both_sides_of_damage_are_found(tmp_path: Path) -> None:
    """Damage before the middle: both appearances found, each at its time; the range told; partial; the video too."""
    whole = film("twice.mp4", *H264, frames=180, present=APPEARS)
    path = damaged("twice-damaged.mp4", whole.path, at=0.4, size=1500)
    results = await run(Film(path, whole.size, whole.numbers, whole.rate), tmp_path, **{"pipeline.gate": "detections"})

    assert results.state == "partial"
    (warning,) = results.warnings
    start, end = (float(number) for number in re.findall(r"[\d.]+(?= s)", warning))
    assert 50 / 30 < start < end < 130 / 30
    sound = [record for record in results.keyframes if not start <= (record.key_index - 1) / 30 <= end]
    assert {record.key_index - 1 for record in sound if record.detections} == {
        index for index in range(10, 180, 11) if index in APPEARS
    }
    for record in sound:
        assert record.time_s == pytest.approx((record.key_index - 1) / 30, abs=1e-4)
        if record.detections:
            number, box = seen(record)
            assert number == record.key_index - 1
            assert box == pytest.approx(box_of(number, whole.size), abs=WITHIN_PX)
    answered = [slot for slot in results.slots if slot.state == "ok"]
    assert answered[0].end_s < start < end < answered[-1].start_s

    video = tmp_path / "annotated.mp4"
    told_there = annotate(path, video, keyframes=boxes_of(results))
    assert [text.split(";")[0] for text in told_there] == [warning.split(";")[0]]
    with av.open(str(video)) as container:
        numbers = {number_in(pixels_of(frame)): frame.time for frame in container.decode(video=0)}
    assert [numbers[number] for number in (0, 45, 130, 179)] == pytest.approx([0, 1.5, 130 / 30, 179 / 30], abs=1e-3)
