"""What is in a video file, what is odd about it, and what the pipeline makes of it.

Headers are read, and the first seconds are decoded, or all of it: what a header says is a hint.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

from av.container import InputContainer
from av.video.stream import VideoStream

from pipeline_ver2.audio_track import COPIED_CODECS, audio_stream, codec_name
from pipeline_ver2.config import Config, PipelineConfig
from pipeline_ver2.errors import VideoError
from pipeline_ver2.file_oddities import oddities
from pipeline_ver2.file_report import FIRST_S, NOT_NAMED, AudioPart, Colour, FileReport, PlanPart, ReadPart, VideoPart
from pipeline_ver2.main import FrameGrid
from pipeline_ver2.probe import Header, open_video
from pipeline_ver2.video import VideoReader

_PATIENCE_S = 5.0
_MATRICES = {0: "RGB", 1: "BT.709", 4: "FCC", 5: "BT.601", 6: "BT.601", 7: "SMPTE 240M", 9: "BT.2020", 10: "BT.2020"}
_PRIMARIES = {1: "BT.709", 4: "BT.470M", 5: "BT.601 (625)", 6: "BT.601 (525)", 9: "BT.2020", 11: "DCI-P3", 12: "P3"}
_TRANSFERS = {1: "BT.709", 6: "BT.601", 13: "sRGB", 14: "BT.2020", 15: "BT.2020", 16: "PQ (HDR)", 18: "HLG (HDR)"}
_RANGES = {1: "limited", 2: "full"}


@dataclass(slots=True)
class _Reading:
    """What comes of decoding."""

    grid: FrameGrid
    frames: int = 0
    frames_grid: int = 0
    last: Fraction = Fraction(0)
    whole: bool = False
    interlaced: bool = False
    gaps: list[float] = field(default_factory=list)

    def go(self, reader: VideoReader, limit_s: float, patience_s: float) -> None:
        """Decode until the end, or until so much of the video or of our time has passed."""
        give_up = time.monotonic() + patience_s
        current = reader.next_frame()
        while current is not None:
            self.frames += 1
            self.last = current.time
            self.interlaced |= current.picture.interlaced_frame
            if current.time >= limit_s or time.monotonic() > give_up:
                return
            following = reader.next_frame()
            self.frames_grid += len(self.grid.fill(current.time, following.time if following else None))
            if following is not None:
                self.gaps.append(float(following.time - current.time))
            current = following
        self.whole = True

    @property
    def variable(self) -> bool:
        """Whether gaps differ by more than rounding to milliseconds makes them."""
        if not self.gaps:
            return False
        usual = sorted(self.gaps)[len(self.gaps) // 2]
        return max(self.gaps) - min(self.gaps) > max(0.0025, 0.1 * usual)


def probe_file(path: Path, config: Config, *, full: bool = False) -> FileReport:
    """Look at a file, at most a few seconds long unless all of it is to be decoded; blocks.

    A file that cannot be used is told as such, not raised.
    """
    try:
        return _look(path, config, full=full)
    except VideoError as error:
        return FileReport(file=path.name, usable=False, reason=str(error))


def _look(path: Path, config: Config, *, full: bool) -> FileReport:
    reading = _Reading(FrameGrid(config.pipeline.grid_fps))
    with VideoReader(path) as reader:
        if full:
            reading.go(reader, math.inf, math.inf)
        else:
            reading.go(reader, FIRST_S, _PATIENCE_S)
        container, stream = open_video(path)
        with container:
            video = _video(reader, container, stream, interlaced=reading.interlaced)
            report = FileReport(
                file=path.name,
                usable=True,
                size_bytes=path.stat().st_size,
                container=f"{container.format.long_name} ({container.format.name})",
                video=video,
                audio=_audio(container),
                other_streams=_others(container, stream),
                read=_read(reader, reading),
                plan=_plan(config, video, reading, damaged=bool(reader.report.damaged)),
            )
    return report.model_copy(update={"odd": tuple(oddities(path, report, config))})


def _video(reader: VideoReader, container: InputContainer, stream: VideoStream, *, interlaced: bool) -> VideoPart:
    header, context = Header.read(container, stream), stream.codec_context
    turned = reader.orientation
    return VideoPart(
        codec=reader.info.codec,
        profile=stream.profile,
        pixel_format=context.pix_fmt or NOT_NAMED,
        stored=(context.width, context.height),
        shown=(reader.info.width, reader.info.height),
        rotation=reader.info.rotation,
        mirrored=(turned.flip_rows ^ turned.flip_columns) ^ turned.transpose,
        pixel_aspect=f"{reader.pixel_aspect.numerator}:{reader.pixel_aspect.denominator}",
        colour=Colour(
            matrix=_MATRICES.get(context.colorspace, NOT_NAMED),
            primaries=_PRIMARIES.get(context.color_primaries, NOT_NAMED),
            transfer=_TRANSFERS.get(context.color_trc, NOT_NAMED),
            range=_RANGES.get(context.color_range, NOT_NAMED),
        ),
        interlaced=interlaced,
        fps=header.fps,
        frames=header.frames,
        duration_s=header.duration_s,
        start_s=float(reader.origin_s),
        timestamps=header.timestamps,
    )


def _audio(container: InputContainer) -> AudioPart | None:
    stream = audio_stream(container)
    if stream is None:
        return None
    codec = codec_name(stream)
    if codec is None:
        return AudioPart(codec=None, channels=None, rate=None, annotated="left out")
    kept: Literal["copied", "encoded again as AAC"] = "copied" if codec in COPIED_CODECS else "encoded again as AAC"
    return AudioPart(codec=codec, channels=stream.channels, rate=stream.rate, annotated=kept)


def _others(container: InputContainer, used: VideoStream) -> tuple[str, ...]:
    """Kinds of the streams that nothing is made of."""
    audio = audio_stream(container)
    return tuple(
        stream.type or "unknown"
        for stream in container.streams
        if stream.index not in {used.index, audio and audio.index}
    )


def _read(reader: VideoReader, reading: _Reading) -> ReadPart:
    seconds = float(reading.last)
    return ReadPart(
        frames=reading.frames,
        seconds=round(seconds, 6),
        whole=reading.whole,
        fps=round((reading.frames - 1) / seconds, 4) if seconds > 0 else None,
        shortest_gap_s=round(min(reading.gaps), 6) if reading.gaps else None,
        longest_gap_s=round(max(reading.gaps), 6) if reading.gaps else None,
        variable=reading.variable,
        damaged=tuple((round(start, 3), round(end, 3)) for start, end in reader.report.damaged),
        warnings=tuple(reader.report.warnings),
    )


def _plan(config: Config, video: VideoPart, reading: _Reading, *, damaged: bool) -> PlanPart:
    settings: PipelineConfig = config.pipeline
    frames_grid = reading.frames_grid if reading.whole else _estimate(video, settings)
    keyframes = None if frames_grid is None else max(1, frames_grid // settings.keyframe_interval)
    width, height = video.shown
    return PlanPart(
        grid_fps=settings.grid_fps,
        frames_grid=frames_grid,
        keyframes=keyframes,
        batches=None if keyframes is None else math.ceil(keyframes / config.stage1.batch_size),
        slots=None if keyframes is None else math.ceil(keyframes / settings.slot_frames),
        annotated=(width + width % 2, height + height % 2),
        state="partial" if damaged else "succeeded",
        estimated=not reading.whole,
    )


def _estimate(video: VideoPart, settings: PipelineConfig) -> int | None:
    fps = settings.grid_fps or video.fps
    return round(video.duration_s * fps) if video.duration_s and fps else None
