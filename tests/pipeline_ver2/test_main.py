"""Frame extraction on the grid, keyframes, clips, slots, the resize and timing records."""

from __future__ import annotations

import math
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_ver2.errors import VideoError
from pipeline_ver2.main import (
    ClipBuilder,
    FrameExtractor,
    FrameGrid,
    GridFrame,
    TimingRecorder,
    resize,
)
from tests.videos import CLIPS, ffmpeg, folder, number_of, numbered, steady

needs_clips = pytest.mark.skipif(not CLIPS.is_dir(), reason="the shared clips are not beside this checkout")


def extractor(path: Path, *, grid_fps: float | None = 30, keyframe_interval: int = 11) -> FrameExtractor:
    return FrameExtractor(path, grid_fps=grid_fps, keyframe_interval=keyframe_interval, model_size=(32, 48))


def extract(path: Path, *, grid_fps: float | None = 30, keyframe_interval: int = 11) -> list[GridFrame]:
    with extractor(path, grid_fps=grid_fps, keyframe_interval=keyframe_interval) as frames:
        return list(frames)


def shown(frames: list[GridFrame]) -> list[int]:
    """Numbers of the source frames on the grid."""
    return [number_of(frame.small) for frame in frames]


def key_indices(frames: list[GridFrame]) -> list[int]:
    return [frame.key_index for frame in frames if frame.key_index is not None]


def by_definition(times: list[Fraction], fps: Fraction) -> list[int]:
    """The grid as it is defined: the last frame with time <= (n + 0.5) / fps, up to n = round(t_last * fps)."""
    count = round(times[-1] * fps) + 1
    limits = [(Fraction(n) + Fraction(1, 2)) / fps for n in range(count)]
    return [max(k for k, time in enumerate(times) if time <= limit) for limit in limits]


def filled(times: list[Fraction], fps: float | None) -> list[int]:
    """The grid as `FrameGrid` fills it."""
    grid = FrameGrid(fps)
    result: list[int] = []
    for number, time in enumerate(times):
        indices = grid.fill(time, times[number + 1] if number + 1 < len(times) else None)
        assert indices.start == len(result) or not indices
        result.extend(number for _ in indices)
    return result


gaps = st.lists(st.fractions(min_value=Fraction(1, 1000), max_value=2, max_denominator=90_000), max_size=40)


@settings(deadline=None, max_examples=60)
@given(gaps=gaps, fps=st.sampled_from([5.0, 12.5, 29.97, 30.0, 60.0]))
def test_the_grid_is_what_its_definition_says(gaps: list[Fraction], fps: float) -> None:
    """For any times and rates, in exact arithmetic."""
    times = [sum(gaps[:count], Fraction(0)) for count in range(len(gaps) + 1)]
    assert filled(times, fps) == by_definition(times, Fraction(str(fps)))


@pytest.mark.parametrize("offset", range(3))
def test_30_fps_in_milliseconds_is_its_own_grid(offset: int) -> None:
    """Rounding to milliseconds, as Matroska does, neither loses nor doubles a frame."""
    times = [Fraction(round(Fraction(1000 * n + offset, 30)), 1000) for n in range(20_000)]
    times = [time - times[0] for time in times]
    assert filled(times, 30) == list(range(20_000))


def test_without_a_rate_every_source_frame_is_on_the_grid() -> None:
    """`grid_fps: null` keeps native frames."""
    assert filled([Fraction(0), Fraction(1, 7), Fraction(3)], None) == [0, 1, 2]
    assert len(extract(numbered("ten.mp4", steady(10, 1)), grid_fps=None)) == 10


def test_a_plain_30_fps_clip_has_the_documented_keyframes() -> None:
    """419 frames give 38 keyframes, 11 to 418, each with its full picture."""
    frames = extract(numbered("document.mp4", steady(30, Fraction(419, 30))))
    assert shown(frames) == list(range(419))
    assert [frame.index for frame in frames] == list(range(419))
    assert key_indices(frames) == list(range(11, 419, 11))
    assert len(key_indices(frames)) == 38
    for frame in frames:
        assert frame.small.shape == (32, 48, 3)
        assert frame.time_s == pytest.approx(frame.index / 30, abs=1e-5)
        if frame.full is None:
            assert frame.key_index is None
        else:
            assert frame.full.shape == (96, 160, 3)
            assert frame.full.dtype == np.uint8
            assert number_of(frame.full) == frame.index == (frame.key_index or 0) - 1


@pytest.mark.fault("V2")
def test_variable_frame_rate_shows_the_right_moment() -> None:
    """After one second only every fifth frame is there; the grid holds each until the next."""
    times = (*steady(30, 1), *(1 + Fraction(number, 6) for number in range(6)))
    frames = extract(numbered("variable.mp4", times))
    assert shown(frames) == by_definition([Fraction(time) for time in times], Fraction(30))
    assert all(abs(frame.time_s - frame.index / 30) < 1 / 6 + 1 / 60 for frame in frames)


@pytest.mark.fault("V3")
@pytest.mark.parametrize("fps", [10, 15, 60])
def test_other_frame_rates_have_the_same_moments_as_keyframes(fps: int) -> None:
    """10, 15 and 60 fps copies of a scene: same keyframes, at most one source frame apart."""
    original = extract(numbered("thirty.mp4", steady(30, 3)))
    copy = extract(numbered(f"fps{fps}.mp4", steady(fps, 3)))
    common = key_indices(copy)
    assert common == key_indices(original)[: len(common)]
    assert len(common) >= len(key_indices(original)) - 1
    moments = {frame.key_index: frame.time_s for frame in original if frame.key_index}
    apart = [abs(frame.time_s - moments[frame.key_index]) for frame in copy if frame.key_index]
    assert max(apart) <= 1 / min(fps, 30) + 1e-6


@pytest.mark.fault("V3")
def test_a_slow_source_shares_its_picture_between_grid_frames() -> None:
    """At 10 fps each frame fills three places of the grid and is converted once."""
    frames = extract(numbered("fps10.mp4", steady(10, 3)))
    assert frames[3].small is frames[4].small is frames[5].small
    assert frames[5].small is not frames[6].small


@pytest.mark.fault("V3")
def test_frames_that_are_shown_nowhere_are_not_converted() -> None:
    """Of a 60 fps source half the frames are decoded only."""
    recorder = TimingRecorder()
    path = numbered("fps60.mp4", steady(60, 3))
    with FrameExtractor(path, grid_fps=30, keyframe_interval=11, model_size=(32, 48), recorder=recorder) as frames:
        count = len(list(frames))
        assert frames.report.frames_decoded == 180
        assert frames.report.frames_grid == count == 91
    names = [span.name for span in recorder.spans]
    assert names.count("preprocess") == 90  # the last one is shown twice
    assert names.count("decode") >= 180


@pytest.mark.fault("V10")
@pytest.mark.parametrize(
    ("count", "expected"), [(1, [1]), (7, [7]), (11, [11]), (12, [11]), (21, [11]), (22, [11, 22])]
)
def test_short_videos_have_one_keyframe_at_least(count: int, expected: list[int]) -> None:
    """Shorter than the interval: the last frame; from there on every eleventh."""
    frames = extract(numbered(f"short{count}.mp4", steady(30, Fraction(count, 30))))
    assert shown(frames) == list(range(count))
    assert key_indices(frames) == expected
    assert [frame.key_index for frame in frames if frame.full is not None] == expected


@pytest.mark.fault("V10")
def test_one_frame_makes_a_whole_clip() -> None:
    """The first frame repeats before the start; no index wraps round."""
    (frame,) = extract(numbered("short1.mp4", steady(30, Fraction(1, 30))))
    clip = ClipBuilder(16, 1).push(frame)
    assert clip is not None
    assert clip.shape == (16, 32, 48, 3)
    assert all(np.array_equal(picture, frame.small) for picture in clip)


@pytest.mark.fault("V1")
def test_keyframes_of_a_rotated_recording_are_upright() -> None:
    """The full picture and the small one are turned alike."""
    path = ffmpeg("turned.mp4", "-display_rotation", "90", "-i", str(numbered("ten.mp4", steady(10, 1))), "-c", "copy")
    (key,) = [frame for frame in extract(path, grid_fps=10, keyframe_interval=10) if frame.full is not None]
    assert key.full is not None
    assert key.full.shape == (160, 96, 3)
    assert np.array_equal(key.small, resize(key.full, (32, 48)))


def test_an_unreadable_file_is_refused_on_opening() -> None:
    """Not at the first frame."""
    with pytest.raises(VideoError, match="no such file"):
        extractor(folder() / "missing.mp4")


def test_closing_half_way_ends_the_frames() -> None:
    """After close there is no further frame, and closing twice is fine."""
    frames = extractor(numbered("ten.mp4", steady(10, 1)))
    assert frames.next_frame() is not None
    frames.close()
    frames.close()
    assert frames.next_frame() is None


@needs_clips
def test_a_matroska_clip_loses_and_doubles_no_frame() -> None:
    """30 fps with millisecond timestamps: source frame n is grid frame n."""
    with extractor(CLIPS / "asl_walk.mkv") as frames:
        times = [frame.time_s for frame in frames]
        assert len(times) == len(set(times)) == frames.report.frames_decoded == 89
        assert times == sorted(times)


@needs_clips
@pytest.mark.parametrize(
    ("name", "decoded", "grid"),
    [
        ("arm_wrestling.mp4", 280, 300),
        ("spatiotemporal_det.mp4", 57, 281),
        ("ucf_basketball.mp4", 180, 180),
        ("ucf_biking.mp4", 151, 151),
    ],
)
def test_real_clips_are_read_whole(name: str, decoded: int, grid: int) -> None:
    """Counts of clips from 6 to 30 fps, with and without timestamps; no damage."""
    with extractor(CLIPS / name) as frames:
        assert len(list(frames)) == grid
        assert (frames.report.frames_decoded, frames.report.damaged) == (decoded, [])


def grid_frames(count: int, keys: set[int]) -> list[GridFrame]:
    """Frames of one grey each: frame n is n everywhere."""
    pictures = [np.full((2, 3, 3), n, dtype=np.uint8) for n in range(count)]
    return [GridFrame(n, n / 30, p, n + 1 if n + 1 in keys else None, None) for n, p in enumerate(pictures)]


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 20), rate=st.integers(1, 4), keys=st.sets(st.integers(1, 60), max_size=8), count=st.just(60)
)
def test_clips_follow_the_documented_formula(length: int, rate: int, keys: set[int], count: int) -> None:
    """`frame_paths[max(0, key_idx - i * sampling_rate - 1)]`, oldest first, ending at the keyframe."""
    builder = ClipBuilder(length, rate)
    for frame in grid_frames(count, keys):
        clip = builder.push(frame)
        if frame.key_index is None:
            assert clip is None
            continue
        assert clip is not None
        expected = [max(0, frame.key_index - i * rate - 1) for i in range(length)][::-1]
        assert clip[:, 0, 0, 0].tolist() == expected
        assert clip[-1, 0, 0, 0] == frame.index


def test_a_clip_is_a_copy() -> None:
    """Writing into one does not change the next."""
    builder = ClipBuilder(2, 1)
    first, second = grid_frames(2, {1, 2})
    clip = builder.push(first)
    assert clip is not None
    clip[:] = 77
    after = builder.push(second)
    assert after is not None
    assert after[:, 0, 0, 0].tolist() == [0, 1]


def test_spans_from_many_threads_are_all_kept() -> None:
    """Eight threads, each its own spans, none lost."""
    recorder = TimingRecorder()

    def work(thread: int) -> None:
        for number in range(100):
            with recorder.span("decode", thread=thread, number=number):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(s.attributes["thread"], s.attributes["number"]) for s in recorder.spans} == {
        (thread, number) for thread in range(8) for number in range(100)
    }
    assert all(0 <= span.start_s <= span.end_s <= recorder.now() for span in recorder.spans)


def test_a_span_is_recorded_when_its_block_fails() -> None:
    """The time until the error counts."""
    recorder = TimingRecorder()
    with pytest.raises(ValueError, match="broken"), recorder.span("stage1", batch=3):
        raise ValueError("broken")
    (span,) = recorder.spans
    assert (span.name, dict(span.attributes)) == ("stage1", {"batch": 3})


def test_past_its_limit_the_recorder_only_counts() -> None:
    """Memory stays bounded over a long video; what is missing is said."""
    recorder = TimingRecorder(limit=2)
    for number in range(5):
        recorder.add("decode", number, number + 1)
    assert [span.start_s for span in recorder.spans] == [0, 1]
    assert recorder.dropped == 3


def test_a_recorder_that_keeps_the_last_spans_forgets_the_oldest() -> None:
    """Times, names and attributes stay together, in order, when old places are used again."""
    recorder = TimingRecorder(limit=3, keep_last=True)
    for number in range(8):
        recorder.add(f"name{number % 4}", number, number + 0.5, **({"slot": number} if number % 2 else {}))
    assert [(span.name, span.start_s, span.end_s) for span in recorder.spans] == [
        ("name1", 5, 5.5),
        ("name2", 6, 6.5),
        ("name3", 7, 7.5),
    ]
    assert [dict(span.attributes) for span in recorder.spans] == [{"slot": 5}, {}, {"slot": 7}]
    assert recorder.dropped == 5
    assert TimingRecorder().spans == ()


def test_resize_squashes_and_leaves_the_right_size_alone() -> None:
    """Aspect is not kept; nothing is copied where nothing is to do."""
    rgb = np.zeros((40, 80, 3), dtype=np.uint8)
    rgb[:, 40:] = 255
    small = resize(rgb, (10, 8))
    assert small.shape == (10, 8, 3)
    assert small[5, 0].tolist() == [0, 0, 0]
    assert small[5, 7].tolist() == [255, 255, 255]
    assert resize(rgb, (40, 80)) is rgb


def test_resize_averages_large_reductions() -> None:
    """Antialias: fine stripes become grey, not stripes of another width."""
    stripes = np.zeros((64, 640, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    small = resize(stripes, (16, 16)).astype(int)
    assert np.abs(small - 128).max() <= 3
    assert math.isclose(small.mean(), 127.5, abs_tol=2)


def test_the_grid_can_skip_what_is_lost() -> None:
    """The frames in between show nothing, and the grid goes on where the next one belongs; without a rate, none are."""
    grid = FrameGrid(30)
    assert list(grid.fill(Fraction(0), None)) == [0]
    assert list(grid.skip_to(Fraction(10, 30))) == list(range(1, 10))
    assert list(grid.skip_to(Fraction(10, 30))) == []
    assert list(grid.fill(Fraction(10, 30), Fraction(11, 30))) == [10]
    assert list(grid.skip_to(Fraction(5, 30))) == []
    native = FrameGrid(None)
    assert list(native.skip_to(Fraction(9))) == []
    assert list(native.fill(Fraction(9), None)) == [0]
