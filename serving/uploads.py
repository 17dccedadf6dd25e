"""Takes a multipart body apart while it comes: the video goes to a file, whatever its size, and memory stays small."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from pipeline_ver2.errors import BodyStalled, BodyTooLarge, FolderInUse, RequestError, StorageFull, ZroactError
from serving.jobs import locked, new_job_id

MEGABYTE = 1_000_000
MIN_FREE_BYTES = 100 * MEGABYTE
"""Uploads leave this much of the disk to the results."""
IDLE_S = 30.0
"""A body that brings nothing for so long is given up."""

_LINGER_S = 2.0
_MAX_OPTIONS_BYTES = 64 * 1024
_FORM_BYTES = 2 * _MAX_OPTIONS_BYTES  # of a body beside its video
_MAX_NAME_LENGTH = 300
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Upload:
    """A video that came whole. `name` is the client's word for it, `options` the text beside it.

    `sha256` is that of the video, in hexadecimal digits.
    """

    path: Path
    name: str
    size: int
    sha256: str
    options: bytes


class PartFile:
    """A file that is being filled."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self.size = 0
        self._stream = stream
        self._digest = hashlib.sha256()

    async def write(self, data: bytes) -> None:
        """Append.

        Raises:
            StorageFull: It does not fit.
        """
        await asyncio.to_thread(self._write, data)

    def upload(self, name: str, options: bytes = b"") -> Upload:
        """What has come, now that it is whole."""
        return Upload(self.path, name, self.size, self._digest.hexdigest(), options)

    def _write(self, data: bytes) -> None:
        check_room(self.path.parent)
        try:
            self._stream.write(data)
            self._stream.flush()
        except OSError as error:
            raise StorageFull(f"the video could not be stored: {error.strerror}") from error
        self.size += len(data)
        self._digest.update(data)


@contextmanager
def part_file(folder: Path) -> Iterator[PartFile]:
    """A new file to be filled; it is gone after the block unless it was moved."""
    path = folder / f"{new_job_id()}.part"
    try:
        with locked(path) as stream:
            yield PartFile(path, stream)
    finally:
        path.unlink(missing_ok=True)


@asynccontextmanager
async def received(request: Request, folder: Path, max_bytes: int) -> AsyncIterator[Upload]:
    """The parts `video` and `options` of a request; the file is gone after the block unless it was moved.

    Args:
        request: Its body has not been read.
        folder: Where the file is written; on the file system of its destination.
        max_bytes: Largest video.

    Raises:
        RequestError: The body is not what it should be, too large, or stays away.
        StorageFull: The file does not fit.
        ClientDisconnect: The client is gone.
    """
    with part_file(folder) as file:
        yield await _receive(request, file, max_bytes)


def sweep(folder: Path) -> None:
    """Delete what uploads that nobody writes any more have left behind; blocks."""
    for path in folder.glob("*.part"):
        with contextlib.suppress(FolderInUse), locked(path):
            path.unlink(missing_ok=True)


def check_room(folder: Path, size: int = 0) -> None:
    """See whether there is room for so many bytes.

    Raises:
        StorageFull: There is not.
    """
    free = shutil.disk_usage(folder).free
    if free < size + MIN_FREE_BYTES:
        raise StorageFull(f"the disk of paths.data_dir has {free // MEGABYTE} MB left, too little")


async def _receive(request: Request, file: PartFile, max_bytes: int) -> Upload:
    body = request.stream()
    try:
        form = _expected(request, file.path.parent, max_bytes)
    except ZroactError:
        if request.headers.get("expect") is None:  # else nothing comes unless it is asked for
            await _drain(body)
        raise
    try:
        async for chunk in in_time(body):
            form.feed(chunk)
            if form.pending >= _PIECE_BYTES:
                await file.write(form.take())
        await file.write(form.take())
        return form.upload(file)
    except ZroactError:
        await _drain(body)
        raise


def _expected(request: Request, folder: Path, max_bytes: int) -> _Form:
    """An empty form, if the head of the request tells of one that can be taken."""
    _check_announced(request, folder, max_bytes)
    try:
        return _Form(request, max_bytes)
    except FormParserError as error:
        raise RequestError(f"the body is no multipart form: {error}") from error


def _check_announced(request: Request, folder: Path, max_bytes: int) -> None:
    announced = request.headers.get("content-length", "0")
    size = int(announced) if announced.isdigit() else 0
    if size > max_bytes + _FORM_BYTES:
        raise too_large(max_bytes)
    check_room(folder, size)


def too_large(max_bytes: int) -> BodyTooLarge:
    """The error for a video over the limit."""
    return BodyTooLarge(f"video: over {max_bytes / MEGABYTE:g} MB (serving.max_upload_mb)")


async def in_time(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a body.

    Raises:
        BodyStalled: Nothing came for `IDLE_S`.
    """
    while True:
        try:
            async with asyncio.timeout(IDLE_S):
                chunk = await anext(body, None)
        except TimeoutError as error:
            raise BodyStalled(f"nothing came for {IDLE_S:g} s") from error
        if chunk is None:
            return
        yield chunk


async def _drain(body: AsyncIterator[bytes]) -> None:
    """Read on for a moment: a connection that is closed over unread data takes the reply with it."""
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_LINGER_S):
            async for _ in body:
                pass


@dataclass
class _Part:
    name: str = ""
    filename: str | None = None
    field_name: bytearray = field(default_factory=bytearray)
    field_value: bytearray = field(default_factory=bytearray)


class _Form:
    """What came so far. Video bytes wait in memory until they are taken, the rest stays."""

    def __init__(self, request: Request, max_bytes: int) -> None:
        kind, parameters = parse_options_header(request.headers.get("content-type"))
        if kind != b"multipart/form-data" or b"boundary" not in parameters:
            raise RequestError("the body must be multipart/form-data with a part `video`, or application/json")
        self._max_bytes = max_bytes
        self._part = _Part()
        self._seen: set[str] = set()
        self._name = ""
        self._size = 0
        self._waiting = bytearray()
        self._options = bytearray()
        self._complete = False
        self._parser = MultipartParser(
            parameters[b"boundary"],
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._add_field_name,
                "on_header_value": self._add_field_value,
                "on_header_end": self._end_field,
                "on_headers_finished": self._begin_data,
                "on_part_data": self._add_data,
                "on_end": self._end,
            },
        )

    @property
    def pending(self) -> int:
        """Video bytes that wait to be taken."""
        return len(self._waiting)

    def take(self) -> bytes:
        """The video bytes that wait."""
        data = bytes(self._waiting)
        self._waiting.clear()
        return data

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the body."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise RequestError(f"the body is no multipart form: {error}") from error

    def upload(self, file: PartFile) -> Upload:
        """The upload in this file, once the body has come."""
        if not self._complete:
            raise RequestError("the body ends in the middle of the form")
        if "video" not in self._seen:
            raise RequestError("video: the part is missing")
        return file.upload(self._name, bytes(self._options))

    def _begin_part(self) -> None:
        self._part = _Part()

    def _add_field_name(self, data: bytes, start: int, end: int) -> None:
        self._part.field_name += data[start:end]

    def _add_field_value(self, data: bytes, start: int, end: int) -> None:
        self._part.field_value += data[start:end]

    def _end_field(self) -> None:
        part = self._part
        if part.field_name.lower() == b"content-disposition":
            _, parameters = parse_options_header(bytes(part.field_value))
            part.name = parameters.get(b"name", b"").decode("utf-8", errors="replace")
            if b"filename" in parameters:
                part.filename = parameters[b"filename"].decode("utf-8", errors="replace")
        part.field_name.clear()
        part.field_value.clear()

    def _begin_data(self) -> None:
        name = self._part.name
        if name not in {"video", "options"}:
            raise RequestError(f"{name[:40]!r}: unknown part, there are `video` and `options`")
        if name in self._seen:
            raise RequestError(f"{name}: the part comes twice")
        self._seen.add(name)
        if name == "video":
            self._name = shown_name(self._part.filename or "video")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.name == "options":
            self._options += data[start:end]
            if len(self._options) > _MAX_OPTIONS_BYTES:
                raise BodyTooLarge(f"options: over {_MAX_OPTIONS_BYTES} bytes")
            return
        self._size += end - start
        if self._size > self._max_bytes:
            raise too_large(self._max_bytes)
        self._waiting += data[start:end]

    def _end(self) -> None:
        self._complete = True


def shown_name(name: str) -> str:
    """A client's file name, fit to be shown: its last part, of printable characters, cut to a bearable length."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    printable = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in last)
    return printable[:_MAX_NAME_LENGTH] or "video"
