"""Which videos are taken: below the media roots, readable, and within the limits before a frame is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline_ver2.config import VideoLimits
from pipeline_ver2.errors import MediaPathError, VideoError, VideoOverLimits
from pipeline_ver2.main import probe_video
from pipeline_ver2.probe import Header, open_video


def allowed_path(text: str, roots: Sequence[Path]) -> Path:
    """The real path of a file a client names; blocks.

    Raises:
        MediaPathError: It is no file below a media root once links are followed.
    """
    try:
        real = Path(text).resolve()
        if Path(text).is_absolute() and real.is_file() and any(real.is_relative_to(root.resolve()) for root in roots):
            return real
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a zero byte; RuntimeError: links in a circle
        raise MediaPathError(f"source: cannot be used: {error}") from error
    # One message for what is missing and what is elsewhere: a stranger learns nothing about other folders.
    raise MediaPathError(f"source: {text} is no absolute path of a file under a media root (paths.media_roots)")


def check_video(path: Path, name: str, limits: VideoLimits) -> None:
    """See whether a file is a video that may be run; blocks.

    Args:
        path: The file.
        name: What the client calls it, for messages.
        limits: What it may have at most, by its header.

    Raises:
        VideoError: It is no video; the message says why.
        VideoOverLimits: It is too large, too long or too fast.
    """
    try:
        _check_header(path, limits)
        probe_video(path)
    except VideoOverLimits:
        raise
    except VideoError as error:
        raise VideoError(str(error).replace(str(path), name)) from error


def _check_header(path: Path, limits: VideoLimits) -> None:
    container, stream = open_video(path)
    with container:
        header = Header.read(container, stream)
        pixels = stream.codec_context.width * stream.codec_context.height
    for said, value, most, key in (
        ("pixels a frame", pixels, limits.pixels, "pixels"),
        ("seconds", header.duration_s, limits.seconds, "seconds"),
        ("frames a second", header.fps, limits.fps, "fps"),
    ):
        if value is not None and value > most:
            raise VideoOverLimits(f"the video has {value:g} {said}, allowed are {most:g} (serving.limits.{key})")
