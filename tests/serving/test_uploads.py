"""Multipart bodies, taken apart while they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from pipeline_ver2.errors import BodyStalled, BodyTooLarge, RequestError, StorageFull
from serving import uploads
from serving.jobs import locked
from serving.uploads import Upload, check_room, received, shown_name, sweep

MOST = 5000
VIDEO = bytes(range(256)) * 10


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    """One part of a form."""
    shown = "" if filename is None else f'; filename="{filename}"'
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{shown}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    """A whole body."""
    return b"".join(parts) + b"--edge--\r\n"


def request_of(body: bytes | Sequence[Message], *, piece: int = 1000, **headers: str) -> Request:
    """A request that brings its body in pieces, or these messages and then nothing more."""
    if isinstance(body, bytes):
        pieces = [body[start : start + piece] for start in range(0, len(body), piece)]
        messages: list[Message] = [{"type": "http.request", "body": each, "more_body": True} for each in pieces]
        messages.append({"type": "http.request", "body": b"", "more_body": False})
    else:
        messages = list(body)

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    given = {"content-type": "multipart/form-data; boundary=edge", **headers}
    raw = {key.replace("_", "-"): value for key, value in given.items()}
    head = [(key.encode(), value.encode()) for key, value in raw.items()]
    return Request({"type": "http", "method": "POST", "path": "/jobs", "headers": head}, receive)


async def take(request: Request, folder: Path) -> tuple[Upload, bytes]:
    """Receive a body; the upload and what was in its file."""
    async with received(request, folder, MOST) as upload:
        return upload, upload.path.read_bytes()


def left_in(folder: Path) -> list[Path]:
    """What lies in a folder."""
    return list(folder.iterdir())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits."""
    monkeypatch.setattr(uploads, "IDLE_S", 0.1)
    monkeypatch.setattr(uploads, "_LINGER_S", 0.1)


@pytest.mark.parametrize("piece", [1, 7, 1000, 10**6])
async def test_both_parts_arrive_whole(tmp_path: Path, piece: int) -> None:
    """However the body is cut into pieces; the file is gone afterwards."""
    body = form(part("options", b'{"gate": "all"}'), part("video", VIDEO, "film.mp4"))
    upload, content = await take(request_of(body, piece=piece), tmp_path)
    assert content == VIDEO
    assert (upload.name, upload.size, upload.options) == ("film.mp4", len(VIDEO), b'{"gate": "all"}')
    assert left_in(tmp_path) == []


async def test_an_empty_video_is_no_error_here(tmp_path: Path) -> None:
    """Whether it is a video is seen later; options may be left out."""
    upload, content = await take(request_of(form(part("video", b"", "a"))), tmp_path)
    assert (upload.size, upload.options, content) == (0, b"", b"")


async def test_what_looks_like_an_edge_in_a_video(tmp_path: Path) -> None:
    """Bytes that begin like the boundary stay part of the video."""
    content = b"x\r\n--edg" + b"\r\n--edges\r"
    assert (await take(request_of(form(part("video", content)), piece=3), tmp_path))[1] == content


@pytest.mark.fault("O7")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "ends in the middle"),
        (b"nonsense", "no multipart form"),
        (part("video", VIDEO, "a"), "ends in the middle"),
        (form(part("video", VIDEO, "a"))[:-40], "ends in the middle"),
        (form(part("options", b"{}")), "video: the part is missing"),
        (form(part("film", VIDEO)), "'film': unknown part"),
        (form(part("video", b"1"), part("video", b"2")), "comes twice"),
        (form(b"--edge\r\n\r\n1\r\n"), "unknown part"),
        (form(b"--edge\r\n" + b"a: b\r\n" * 100 + b"\r\n1\r\n"), "no multipart form"),
    ],
)
async def test_bodies_that_are_no_upload(tmp_path: Path, body: bytes, said: str) -> None:
    """Refused with the reason, and nothing is left."""
    with pytest.raises(RequestError, match=said):
        await take(request_of(body), tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.fault("O7")
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "multipart/form-data", "multipart/form-data; boundary=" + "e" * 999]
)
async def test_other_kinds_of_body(tmp_path: Path, kind: str) -> None:
    """Only forms with an edge."""
    with pytest.raises(RequestError):
        await take(request_of(b"{}", content_type=kind), tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.fault("O7")
@pytest.mark.parametrize(
    "body", [form(part("video", bytes(MOST + 1))), form(part("options", bytes(70_000)), part("video", b"1"))]
)
async def test_larger_than_the_limit(tmp_path: Path, body: bytes) -> None:
    """Noticed while it comes."""
    with pytest.raises(BodyTooLarge):
        await take(request_of(body), tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.fault("O7")
async def test_a_video_of_the_largest_size(tmp_path: Path) -> None:
    """The limit itself is allowed."""
    assert (await take(request_of(form(part("video", bytes(MOST)))), tmp_path))[0].size == MOST


@pytest.mark.fault("O7")
@pytest.mark.usefixtures("quick")
async def test_an_announced_size_over_the_limit(tmp_path: Path) -> None:
    """Refused before anything is read."""
    with pytest.raises(BodyTooLarge):
        await take(request_of([], content_length=str(10**6)), tmp_path)


@pytest.mark.fault("O7")
async def test_a_connection_cut_in_the_middle(tmp_path: Path) -> None:
    """No file is left."""
    half = part("video", VIDEO, "a")[:-100]
    messages: list[Message] = [{"type": "http.request", "body": half, "more_body": True}, {"type": "http.disconnect"}]
    with pytest.raises(ClientDisconnect):
        await take(request_of(messages), tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.fault("O7")
@pytest.mark.usefixtures("quick")
async def test_a_body_that_stays_away(tmp_path: Path) -> None:
    """Given up after a while without a byte."""
    messages: list[Message] = [{"type": "http.request", "body": part("video", VIDEO)[:-9], "more_body": True}]
    with pytest.raises(BodyStalled):
        await take(request_of(messages), tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.fault("O7")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
async def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """507, and no file is left."""
    monkeypatch.setattr(uploads, "new_job_id", lambda: "full")
    (tmp_path / "full.part").symlink_to("/dev/full")
    with pytest.raises(StorageFull, match="No space left"):
        await take(request_of(form(part("video", VIDEO))), tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.fault("O7")
@pytest.mark.usefixtures("quick")
async def test_a_body_for_which_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen by its announced size."""
    monkeypatch.setattr(uploads, "MIN_FREE_BYTES", 10**18)
    with pytest.raises(StorageFull, match="MB left"):
        await take(request_of([], content_length="10"), tmp_path)
    with pytest.raises(StorageFull):
        check_room(tmp_path)


@pytest.mark.fault("O7")
async def test_a_disk_that_fills_up_by_a_body_of_unknown_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept free for results stays free, though nobody has said how much would come."""
    left = iter([10**18, uploads.MIN_FREE_BYTES - 1])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=next(left)))
    with pytest.raises(StorageFull, match="MB left"):
        await take(request_of(form(part("video", VIDEO))), tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.fault("O7")
def test_sweeping_leaves_what_is_being_written(tmp_path: Path) -> None:
    """What a killed process left goes, what another one writes stays."""
    (tmp_path / "dead.part").touch()
    with locked(tmp_path / "alive.part"):
        sweep(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["alive.part"]


@pytest.mark.fault("V13")
@pytest.mark.fault("O8")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("film.mp4", "film.mp4"),
        ("../../evil.mp4", "evil.mp4"),
        ("C:\\films\\a.mp4", "a.mp4"),
        ("/", "video"),
        ("", "video"),
        ("a\n\x00b", "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b"),
        ("ä 映像 '%05d' #.mp4", "ä 映像 '%05d' #.mp4"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_names_are_only_shown(name: str, shown: str) -> None:
    """The last part, of characters that can be shown, not too many."""
    assert shown_name(name) == shown
