"""Audio beside the annotated video: copied or encoded again, in time with the picture."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline_ver2.overlay import annotate
from tests.videos import ffmpeg, lavfi


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "annotated.mp4"


def picture(seconds: float = 1) -> Path:
    """Grey pictures alone."""
    return lavfi(f"grey{seconds}.mp4", f"color=gray:s=160x120:r=30:d={seconds}", "-pix_fmt", "yuv420p")


def with_sound(name: str, *arguments: str, sound: str = "sine=d=1:r=44100") -> Path:
    """One second of grey with sound beside it."""
    return ffmpeg(name, "-i", str(picture()), "-f", "lavfi", "-i", sound, "-c:v", "copy", *arguments)


def samples_of(path: Path) -> tuple[NDArray[np.float32], int]:
    """The sound of a file as it is played from the video's first frame on: `(samples,)` of the first channel, rate."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        frames = list(container.decode(stream))
        rate = stream.rate
    sound = np.zeros(round((frames[-1].time or 0) * rate) + rate, np.float32)
    for frame in frames:
        begins = round((frame.time or 0) * rate)
        skipped = max(-begins, 0)
        part = frame.to_ndarray()[0, skipped : frame.samples]
        sound[begins + skipped : begins + skipped + len(part)] = part
    return sound, rate


def loud(path: Path) -> tuple[float, float]:
    """From when to when there is sound, seconds of the video."""
    sound, rate = samples_of(path)
    heard = np.flatnonzero(np.abs(sound) > 0.02)
    return float(heard[0] / rate), float(heard[-1] / rate)


@pytest.mark.fault("V5")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aac.mp4", ("-c:a", "aac")),
        ("late-aac.ts", ("-c:a", "aac", "-output_ts_offset", "5")),
        ("mp3.mkv", ("-c:a", "libmp3lame")),
        ("opus.mkv", ("-c:a", "libopus", "-ar", "48000")),
    ],
)
def test_audio_is_copied_beside_the_video(name: str, arguments: tuple[str, ...], out: Path) -> None:
    """Same codec, starts with the video whatever the container's start time, as long as the video."""
    source = with_sound(name, *arguments)
    assert annotate(source, out, keyframes=[]) == []
    with av.open(str(source)) as before, av.open(str(out)) as after:
        copied = after.streams.audio[0]
        assert copied.codec.canonical_name == before.streams.audio[0].codec.canonical_name
        # MP4 players need the header that AAC has none of in TS.
        assert copied.codec_context.extradata or name != "late-aac.ts"
    assert loud(out) == pytest.approx((0, 1), abs=0.1)


@pytest.mark.parametrize(
    ("name", "arguments", "rate", "channels"),
    [
        ("vorbis.mkv", ("-c:a", "libvorbis"), 44_100, 1),
        ("ac3.ts", ("-c:a", "ac3", "-ac", "6", "-output_ts_offset", "5"), 44_100, 2),
        ("pcm.mov", ("-c:a", "pcm_s16le", "-ac", "2"), 44_100, 2),
        ("pcm24.mkv", ("-c:a", "pcm_s24le", "-ar", "96000"), 48_000, 1),
        ("mulaw.avi", ("-c:a", "pcm_mulaw", "-ar", "8000"), 8000, 1),
    ],
)
def test_other_audio_is_encoded_again(
    name: str, arguments: tuple[str, ...], rate: int, channels: int, out: Path
) -> None:
    """What browsers do not play becomes AAC, in time with the picture, and that is told."""
    (warning,) = annotate(with_sound(name, *arguments), out, keyframes=[])
    assert "encoded again as AAC" in warning
    with av.open(str(out)) as container:
        stream = container.streams.audio[0]
        assert (stream.codec.canonical_name, stream.rate, stream.channels) == ("aac", rate, channels)
        assert container.duration == pytest.approx(1e6, abs=1e6 / 15)
    assert loud(out) == pytest.approx((0, 1), abs=0.1)


@pytest.mark.parametrize("codec", ["aac", "pcm_s16le"])
def test_sound_stays_where_it_is_in_the_picture(codec: str, out: Path) -> None:
    """A beep from 0.5 to 0.7 s is there, copied or encoded again, also where the video begins later than the sound."""
    beep = "sine=f=1000:r=48000:d=2,volume='between(t,0.8,1.0)':eval=frame"
    inputs = ("-itsoffset", "0.3", "-i", str(picture()), "-f", "lavfi", "-i", beep)
    source = ffmpeg(f"beep-{codec}.mkv", *inputs, "-c:v", "copy", "-c:a", codec)
    annotate(source, out, keyframes=[])
    assert loud(out) == pytest.approx((0.5, 0.7), abs=0.05)


def test_sound_that_begins_later_begins_later(out: Path) -> None:
    """A microphone that was switched on after half a second."""
    inputs = ("-i", str(picture()), "-itsoffset", "0.5", "-f", "lavfi", "-i", "sine=d=0.4:r=48000")
    source = ffmpeg("later.mkv", *inputs, "-c:v", "copy", "-c:a", "pcm_s16le")
    annotate(source, out, keyframes=[])
    assert loud(out) == pytest.approx((0.5, 0.9), abs=0.05)


def test_damaged_sound_is_no_damaged_video(out: Path) -> None:
    """Packets that cannot be decoded are silence; the picture is whole."""
    source = with_sound("noise.mkv", "-c:a", "ac3")
    data = bytearray(source.read_bytes())
    with av.open(str(source)) as container:
        packets = [packet for packet in container.demux(audio=0) if packet.pos is not None and packet.size > 50]
    for packet in packets[5:10]:
        place = data.index(bytes(packet))
        data[place : place + 40] = bytes(40)
    path = source.with_name("damaged-sound.mkv")
    path.write_bytes(data)
    (warning,) = annotate(path, out, keyframes=[])
    assert "encoded again" in warning
    with av.open(str(out)) as container:
        assert len(list(container.decode(video=0))) == 30
    assert loud(out) == pytest.approx((0, 1), abs=0.1)


def test_no_audio_is_no_audio(out: Path) -> None:
    """Silence is not made up."""
    assert annotate(picture(), out, keyframes=[]) == []
    with av.open(str(out)) as container:
        assert not container.streams.audio
