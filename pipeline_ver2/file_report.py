"""What is told of a video file before it is run: as an object and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

FIRST_S = 10.0
"""How much of a file is decoded unless all of it is asked for."""

NOT_NAMED = "not named"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Colour(_Part):
    """What the stream says of its colours."""

    matrix: str
    primaries: str
    transfer: str
    range: str


class VideoPart(_Part):
    """The moving picture. `stored` and `shown` are (width, height); `fps` and what follows are the header's."""

    codec: str
    profile: str | None
    pixel_format: str
    stored: tuple[int, int]
    shown: tuple[int, int]
    rotation: int
    mirrored: bool
    pixel_aspect: str
    colour: Colour
    interlaced: bool
    fps: float | None
    frames: int | None
    duration_s: float | None
    start_s: float
    timestamps: Literal["container", "estimated"]


class AudioPart(_Part):
    """The audio, and what becomes of it in the annotated video."""

    codec: str | None
    channels: int | None
    rate: int | None
    annotated: Literal["copied", "encoded again as AAC", "left out"]


class ReadPart(_Part):
    """What was decoded: all of it if `whole`. Gaps are those between frames, `fps` is measured."""

    frames: int
    seconds: float
    whole: bool
    fps: float | None
    shortest_gap_s: float | None
    longest_gap_s: float | None
    variable: bool
    damaged: tuple[tuple[float, float], ...]
    warnings: tuple[str, ...]


class PlanPart(_Part):
    """What the pipeline makes of it; counts are null where the length is not known, and `estimated` from the header."""

    grid_fps: float | None
    frames_grid: int | None
    keyframes: int | None
    batches: int | None
    slots: int | None
    annotated: tuple[int, int]
    state: Literal["succeeded", "partial"]
    estimated: bool


class FileReport(_Part):
    """Everything about one file; only `file`, `usable` and `reason` of one that cannot be used."""

    file: str
    usable: bool
    reason: str | None = None
    size_bytes: int | None = None
    container: str | None = None
    video: VideoPart | None = None
    audio: AudioPart | None = None
    other_streams: tuple[str, ...] = ()
    read: ReadPart | None = None
    odd: tuple[str, ...] = ()
    plan: PlanPart | None = None

    def as_text(self) -> str:
        """For people."""
        lines = [f"{_printable(self.file)}: {'usable' if self.usable else 'not usable'}"]
        if self.reason:
            lines.append(f"  {_printable(self.reason)}")
        lines += [f"  {name:<12}{said}" for name, said in _facts(self)]
        if self.usable:
            lines += ["", "What is odd about it"]
            lines += [f"  - {sentence}" for sentence in self.odd] or ["  Nothing."]
        if self.plan is not None:
            lines += ["", "What the pipeline makes of it"]
            lines += [f"  {name:<12}{said}" for name, said in _plans(self.plan)]
        return "\n".join(lines)


def _printable(text: str) -> str:
    """A name as it can be shown: what is no printable character as its code."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _facts(report: FileReport) -> Iterator[tuple[str, str]]:
    video, audio, read = report.video, report.audio, report.read
    if report.size_bytes is not None and report.container is not None:
        yield "file", f"{report.size_bytes:,} bytes, {report.container}"
    if video is not None:
        width, height = video.stored
        profile = f" ({video.profile})" if video.profile else ""
        yield "video", f"{video.codec}{profile}, {video.pixel_format}, {width}x{height}"
        yield "shown", f"{video.shown[0]}x{video.shown[1]}, turned by {video.rotation}, pixels {video.pixel_aspect}"
        colour = video.colour
        names = (("matrix", colour.matrix), ("primaries", colour.primaries), ("transfer", colour.transfer))
        yield "colour", ", ".join(f"{name} {said}" for name, said in (*names, ("range", colour.range)))
        header = (_said(video.fps, " frames/s"), _said(video.frames, " frames"), _said(video.duration_s, " s"))
        yield "header says", ", ".join(header)
        yield "timestamps", f"{video.timestamps}, the first at {video.start_s:.3f} s"
    if read is not None:
        gaps = "" if read.longest_gap_s is None else f", at most {read.longest_gap_s * 1000:.1f} ms apart"
        part = "all of it" if read.whole else "the first part"
        yield "decoded", f"{part}: {read.frames} frames, {read.seconds:.3f} s, {_said(read.fps, ' frames/s')}{gaps}"
    if audio is not None:
        yield (
            "audio",
            f"{audio.codec or 'unknown codec'}, {_said(audio.channels, ' channels')}, {_said(audio.rate, ' Hz')}",
        )
    elif video is not None:
        yield "audio", "none"


def _plans(plan: PlanPart) -> Iterator[tuple[str, str]]:
    rate = "the source's own frames" if plan.grid_fps is None else f"{plan.grid_fps:g} frames/s"
    frames, keyframes, batches, slots = (
        f"about {count}" if count is not None and plan.estimated else _said(count, "")
        for count in (plan.frames_grid, plan.keyframes, plan.batches, plan.slots)
    )
    yield "grid", f"{rate}, {frames} frames"
    yield "keyframes", f"{keyframes} in {batches} Stage 1 batches"
    yield "slots", f"{slots} questions to Stage 2"
    yield "annotated", f"{plan.annotated[0]}x{plan.annotated[1]}, H.264 in MP4"
    unread = ", if nothing after the part that was decoded is damaged" if plan.estimated else ""
    yield "state", f"{plan.state}{unread}"


def _said(value: float | None, unit: str) -> str:
    """A number with its unit; what a header does not say is unknown."""
    return f"unknown{unit}" if value is None else f"{value:.6g}{unit}"
