"""The audio of the annotated video: copied where MP4 and browsers take it, else encoded again as AAC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain
from typing import TypeAlias

from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError
from av.packet import Packet

COPIED_CODECS = frozenset({"aac", "mp3", "opus"})
"""What goes into an MP4 and is played there by every browser."""

_AAC_RATES = frozenset({8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000})
_OTHER_RATE = 48_000

_Timed: TypeAlias = "Iterator[tuple[Fraction, Packet[AudioStream]]]"


def audio_stream(container: InputContainer) -> AudioStream | None:
    """The audio that belongs to the video: the one a player would choose; None if there is none."""
    best = container.streams.best("audio") if container.streams.audio else None
    return best if isinstance(best, AudioStream) else next(iter(container.streams.audio), None)


def codec_name(stream: AudioStream) -> str | None:
    """What the stream is coded in; None if this program cannot decode it."""
    # PyAV has no context where FFmpeg has no decoder, against its own annotations.
    return stream.codec_context.codec.canonical_name if getattr(stream, "codec_context", None) else None


class AudioTrack:
    """Writes a source's audio, moved to the video's time 0, beside what is written of the video.

    Args:
        container: The source, opened for the audio alone.
        origin: The container's time of the first video frame, seconds.
        output: The MP4; not a packet of it may have been written.
    """

    def __init__(self, container: InputContainer, origin: Fraction, output: OutputContainer) -> None:
        self.warnings: list[str] = []
        self._container, self._origin, self._output = container, origin, output
        self._packets: _Timed = iter(())
        self._ahead: tuple[Fraction, Packet[AudioStream]] | None = None
        stream = audio_stream(container)
        if stream is None:
            return
        codec = codec_name(stream)
        if codec is None:
            self.warnings.append("the audio was left out: its codec is not supported")
        elif codec in COPIED_CODECS:
            self._packets = self._copied(stream, output.add_stream_from_template(stream))
        else:
            self._packets = self._encoded(stream, codec)

    def write_until(self, time: Fraction) -> None:
        """Write the packets that start up to a time of the video."""
        while (ahead := self._ahead or next(self._packets, None)) is not None:
            self._ahead = ahead
            starts, packet = ahead
            if starts > time:
                return
            self._ahead = None
            self._output.mux_one(packet)

    def _copied(self, stream: AudioStream, target: AudioStream) -> _Timed:
        """Packets from the video's time 0 on, in order, with their new timestamps, and when each starts."""
        last_dts = -1
        try:
            for packet in self._container.demux(stream):
                if packet.pts is None or packet.dts is None:
                    continue
                offset = round(self._origin / packet.time_base)
                if packet.pts >= offset and packet.dts - offset > last_dts:
                    last_dts = packet.dts = packet.dts - offset
                    packet.pts -= offset
                    packet.stream = target
                    yield packet.pts * packet.time_base, packet
        except FFmpegError as error:
            self.warnings.append(f"the audio ends early: {error.strerror}")

    def _encoded(self, stream: AudioStream, codec: str) -> _Timed:
        """The same, decoded and encoded as AAC, in stereo where there are more channels."""
        context = stream.codec_context
        rate = context.sample_rate if context.sample_rate in _AAC_RATES else _OTHER_RATE
        layout = "mono" if context.layout.nb_channels == 1 else "stereo"
        target: AudioStream = self._output.add_stream("aac", rate=rate, layout=layout)
        self.warnings.append(f"the audio ({codec}) was encoded again as AAC: browsers do not play it in an MP4")
        # Fills gaps with silence, and what is missing before the video's first frame.
        resampler = AudioResampler("fltp", layout, rate, options={"async": "1", "first_pts": "0"})
        return self._encode(target, chain(self._decoded(stream), [None]), resampler)

    def _encode(self, target: AudioStream, frames: Iterable[AudioFrame | None], resampler: AudioResampler) -> _Timed:
        try:
            for frame in frames:
                evened = [*resampler.resample(frame), *([] if frame else [None])]
                for packet in (packet for even in evened for packet in target.encode(even)):
                    yield (packet.pts or 0) * packet.time_base, packet
        except (FFmpegError, ValueError) as error:  # ValueError: another rate or layout from here on
            self.warnings.append(f"the audio ends early: {error}")

    def _decoded(self, stream: AudioStream) -> Iterator[AudioFrame]:
        """Frames that end after the video's time 0, their timestamps counted from it; undecodable ones are missing."""
        for packet in self._container.demux(stream):
            try:
                frames = packet.decode()
            except FFmpegError:
                continue
            for frame in frames:
                if frame.pts is None or frame.time_base is None:
                    continue
                starts = frame.pts * frame.time_base - self._origin
                if starts + Fraction(frame.samples, frame.sample_rate) > 0:
                    frame.pts, frame.time_base = round(starts * frame.sample_rate), Fraction(1, frame.sample_rate)
                    yield frame
