"""What is odd about a video file, each in a plain sentence with what follows from it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from pipeline_ver2.config import Config, VideoLimits
from pipeline_ver2.file_report import FIRST_S, NOT_NAMED, FileReport, PlanPart, ReadPart, VideoPart

# What FFmpeg calls the container that a name promises.
_NAMED = {
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".3gp", ".3g2"), "mov"),
    **dict.fromkeys((".mkv", ".webm"), "matroska"),
    **dict.fromkeys((".ts", ".mts", ".m2ts"), "mpegts"),
    **dict.fromkeys((".mpg", ".mpeg", ".vob"), "mpeg"),
    ".avi": "avi",
    ".flv": "flv",
    ".wmv": "asf",
    ".ogv": "ogg",
}
_RATE_APART = 0.02
_PLAIN_PIXELS = frozenset({"yuv420p", "yuvj420p"})


def oddities(path: Path, report: FileReport, config: Config) -> Iterator[str]:
    """The sentences, the most weighty first."""
    if report.video is None or report.read is None or report.plan is None:
        return
    yield from _damage(path, report.read)
    yield from _names(path, report)
    yield from _geometry(report.video, report.plan)
    yield from _rates(report.video, report.read, report.plan)
    yield from _lengths(report.read, report.plan, config)
    yield from _pixels(report.video)
    yield from _sound(report)
    yield from _limits(report.video, config.serving.limits)


def _damage(path: Path, read: ReadPart) -> Iterator[str]:
    for start, end in read.damaged:
        yield f"It is damaged from {start:.2f} s to {end:.2f} s: the pipeline decodes on after it and ends `partial`."
    if missing := missing_bytes(path):
        yield f"It is cut off: {missing:,} bytes that its index names are not there, so the end is missing."
    yield from (f"In reading it: {text}." for text in read.warnings)


def missing_bytes(path: Path) -> int:
    """How many bytes the last top-level box of an ISO media file says it has beyond the end of the file."""
    size = path.stat().st_size
    offset = 0
    with path.open("rb") as file:
        if file.read(8)[4:] != b"ftyp":
            return 0
        while offset + 8 <= size:
            file.seek(offset)
            length, _ = struct.unpack(">I4s", file.read(8))
            if length == 1:
                length = int.from_bytes(file.read(8), "big")
            if length < 8:  # 0 is "to the end of the file", the rest no box
                return 0
            offset += length
    return max(0, offset - size)


def _names(path: Path, report: FileReport) -> Iterator[str]:
    promised, found = _NAMED.get(path.suffix.lower()), report.container or ""
    if promised and promised not in found.rpartition("(")[2].rstrip(")").split(","):
        yield f"Its name ends in {path.suffix}, but it is {found}: it is read as what it is."


def _geometry(video: VideoPart, plan: PlanPart) -> Iterator[str]:
    if video.rotation:
        width, height = video.shown
        yield f"It is stored turned by {video.rotation} degrees: frames are turned upright, {width}x{height}."
    if video.mirrored:
        yield "It is stored as in a mirror: frames are mirrored back."
    if video.pixel_aspect != "1:1":
        yield (
            f"Its pixels are not square ({video.pixel_aspect}): boxes are in stored pixels, "
            "and the annotated video says the same to the player."
        )
    if plan.annotated != video.shown:
        width, height = plan.annotated
        yield f"Its size is odd: the annotated video is padded to {width}x{height}."
    if video.interlaced:
        yield "It is interlaced: both fields of a frame are looked at as one picture, and what moves has combs."


def _rates(video: VideoPart, read: ReadPart, plan: PlanPart) -> Iterator[str]:
    if video.timestamps == "estimated" and not read.warnings:
        yield "It has no timestamps: times are the frame's number by the rate."
    if video.start_s:
        yield f"Its first frame is at {video.start_s:.3f} s of the file: that is time 0 in all results."
    if video.fps is None:
        yield "Its header names no frame rate that can be one: the rate is measured while it is decoded."
    elif read.fps and not read.variable and abs(read.fps / video.fps - 1) > _RATE_APART:
        yield f"Its header says {video.fps:g} frames a second, measured are {read.fps:g}: the timestamps count."
    if read.variable and read.shortest_gap_s is not None and read.longest_gap_s is not None:
        gaps = f"{read.shortest_gap_s * 1000:.0f} to {read.longest_gap_s * 1000:.0f} ms"
        yield f"Its frame rate varies: frames are {gaps} apart, and each keeps its own time."
    if read.fps and plan.grid_fps:
        if read.fps > plan.grid_fps * (1 + _RATE_APART):
            yield f"It has more than {plan.grid_fps:g} frames a second: those between are decoded, but not looked at."
        elif read.fps < plan.grid_fps * (1 - _RATE_APART):
            yield f"It has fewer than {plan.grid_fps:g} frames a second: each is shown until the next."


def _lengths(read: ReadPart, plan: PlanPart, config: Config) -> Iterator[str]:
    interval, clip = config.pipeline.keyframe_interval, config.stage1.clip_length
    if plan.frames_grid is None:
        yield f"Its header names no length: only the first {FIRST_S:g} s were read; --full reads all of it."
    elif plan.frames_grid < interval:
        yield f"It is shorter than {interval} frames: its last frame is the only keyframe."
    if read.whole and plan.frames_grid is not None and plan.frames_grid < clip:
        yield f"It is shorter than a clip of {clip} frames: the first frame is repeated in front."


def _pixels(video: VideoPart) -> Iterator[str]:
    if video.pixel_format not in _PLAIN_PIXELS:
        yield f"Its pixels are {video.pixel_format}: they are converted to 8 bits, the annotated video to yuv420p."
    if "HDR" in video.colour.transfer:
        yield f"It is {video.colour.transfer}: without tone mapping its colours look flat to the models."
    if video.colour.matrix == NOT_NAMED:
        yield "It does not name its colour matrix: colours are read as BT.601."


def _sound(report: FileReport) -> Iterator[str]:
    if report.audio is not None and report.audio.annotated != "copied":
        codec = report.audio.codec or "unknown codec"
        yield f"Its audio ({codec}) is {report.audio.annotated} in the annotated video: browsers do not play it there."
    if report.other_streams:
        kinds = ", ".join(sorted(set(report.other_streams)))
        yield f"It has {len(report.other_streams)} more streams ({kinds}): nothing is made of them."


def _limits(video: VideoPart, limits: VideoLimits) -> Iterator[str]:
    for said, value, most, key in (
        ("pixels a frame", video.stored[0] * video.stored[1], limits.pixels, "pixels"),
        ("seconds", video.duration_s, limits.seconds, "seconds"),
        ("frames a second", video.fps, limits.fps, "fps"),
    ):
        if value is not None and value > most:
            yield f"It has {value:g} {said}, over the {most:g} of serving.limits.{key}: the job API refuses it."
