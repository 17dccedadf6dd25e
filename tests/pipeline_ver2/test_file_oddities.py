"""Sentences about files that are hard to make, and the look at boxes that a file promises."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.file_oddities import missing_bytes, oddities
from pipeline_ver2.file_report import FileReport
from pipeline_ver2.probe_report import probe_file
from tests.videos import base


def box(kind: bytes, size: int, content: bytes = b"") -> bytes:
    """A box that says it is so long."""
    return struct.pack(">I4s", size, kind) + content


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (box(b"ftyp", 16, bytes(8)) + box(b"mdat", 20, bytes(12)), 0),
        (box(b"ftyp", 16, bytes(8)) + box(b"mdat", 100, bytes(12)), 80),
        (box(b"ftyp", 16, bytes(8)) + box(b"mdat", 1, struct.pack(">Q", 1 << 33)), (1 << 33) - 16),
        (box(b"ftyp", 16, bytes(8)) + box(b"mdat", 0, bytes(12)), 0),
        (box(b"ftyp", 16, bytes(8)) + box(b"mdat", 3, bytes(12)), 0),
        (box(b"RIFF", 100, bytes(8)), 0),
        (b"", 0),
    ],
)
def test_bytes_that_are_promised_and_not_there(content: bytes, missing: int, tmp_path: Path) -> None:
    """Only of ISO media files, with short and long sizes; size 0 is to the end, nonsense is no promise."""
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    assert missing_bytes(path) == missing


def changed(part: str, **changes: object) -> list[str]:
    """What is odd about the plain file, were it so."""
    report = probe_file(base(), Config())
    altered = getattr(report, part).model_copy(update=changes)
    return list(oddities(base(), report.model_copy(update={part: altered}), Config()))


@pytest.mark.fault("V7")
@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("video", {"fps": None}, "names no frame rate that can be one"),
        ("video", {"fps": 60.0}, "says 60 frames a second, measured are 30"),
        ("plan", {"frames_grid": None}, "names no length"),
        ("read", {"warnings": ("the timestamps jump 2 times",)}, "the timestamps jump 2 times"),
    ],
)
def test_headers_that_say_nonsense_or_nothing(part: str, changes: dict[str, object], words: str) -> None:
    """The header is contradicted by what was decoded."""
    assert [sentence for sentence in changed(part, **changes) if words in sentence]
    assert not [sentence for sentence in changed(part) if words in sentence]


def test_further_streams_are_named() -> None:
    """Subtitles and data of a camera."""
    report = probe_file(base(), Config()).model_copy(update={"other_streams": ("data", "data", "subtitle")})
    assert any("3 more streams (data, subtitle)" in sentence for sentence in oddities(base(), report, Config()))


def test_of_what_is_no_video_nothing_is_odd() -> None:
    """The reason is enough."""
    assert list(oddities(base(), FileReport(file="a", usable=False, reason="empty"), Config())) == []
