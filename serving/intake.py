"""From a request to a queued job: received, looked at, put in a folder of its own, entered, queued."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.concurrency import run_in_threadpool

from pipeline_ver2.config import Config
from pipeline_ver2.errors import BodyTooLarge, QueueFull, RequestError, StorageFull
from pipeline_ver2.live_address import public_name
from pipeline_ver2.trace_context import TRACEPARENT_HEADER, TraceContext
from pipeline_ver2.wire import IDEMPOTENCY_HEADER
from serving.downloads import downloaded, is_url
from serving.durability import Queue
from serving.job_metrics import JobMetrics
from serving.jobs import DataDir, JobFile, JobFolder, JobOptions, JobRecord, new_job_id
from serving.live_gate import LiveGate
from serving.sources import allowed_path, check_video
from serving.store import JobStore
from serving.uploads import MEGABYTE, Upload, in_time, received, shown_name
from serving.workers.daemon import cancel_when_gone

RETRY_AFTER_S = 10.0

_MAX_JSON_BYTES = 64 * 1024
_MAX_KEY_LENGTH = 200


class SourceRequest(BaseModel):
    """The JSON body of a job whose video is not sent: an absolute path under a media root, or an allowed host's URL.

    With `live` it is the URL of a live source: rtsp, rtsps, http or https, with user and password where it needs them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    options: JobOptions = JobOptions()


class Intake:
    """Takes jobs in; all or nothing, and no more than the queue holds."""

    def __init__(self, config: Config, store: JobStore, data: DataDir, queue: Queue, metrics: JobMetrics) -> None:
        self._config = config
        self._store = store
        self._data = data
        self._queue = queue
        self._metrics = metrics
        self._arriving = 0

    @property
    def max_queue(self) -> int:
        """How many jobs may wait."""
        return self._config.serving.max_queue

    async def take(self, request: Request) -> JobRecord:
        """The job a request asks for: a new one, or the one it has asked for before with the same key.

        Raises:
            QueueFull: No more jobs may wait.
            RequestError: The request is not what it should be, or its key came with another one.
            SourceUnreachable: The URL it names gives no video.
            VideoError: The video cannot be used.
            StorageFull: There is no room for it.
        """
        asked = _Asked(_key(request), _trace(request))
        known = asked.key is not None and await asyncio.to_thread(self._store.has_key, asked.key)
        waiting = (await asyncio.to_thread(self._store.counts)).get("queued", 0)
        with nullcontext() if known else self._place(waiting):
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
                return await self._from_source(request, asked)
            limit = int(self._config.serving.max_upload_mb * MEGABYTE)
            async with received(request, self._data.uploads, limit) as upload:
                return await self._enter_upload(upload, _options(upload.options), asked)

    @contextmanager
    def _place(self, waiting: int) -> Iterator[None]:
        """A place in the queue while the video arrives."""
        if waiting + self._arriving >= self.max_queue:
            said = f"{waiting} jobs wait and {self._arriving} arrive (serving.max_queue is {self.max_queue})"
            raise QueueFull(said, retry_after_s=RETRY_AFTER_S)
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    async def _from_source(self, request: Request, asked: _Asked) -> JobRecord:
        try:
            wanted = SourceRequest.model_validate_json(await _json_body(request))
        except ValidationError as error:
            raise RequestError(_first_problem(error)) from error
        asked = asked.hashed(wanted.source, wanted.options)
        if (earlier := await asyncio.to_thread(self._earlier, asked)) is not None:
            return earlier
        if wanted.options.live:
            return await run_in_threadpool(self._enter_live, wanted, asked)
        if is_url(wanted.source):
            return await cancel_when_gone(request, self._from_url(wanted, asked))
        return await run_in_threadpool(self._enter_path, wanted, asked)

    async def _from_url(self, wanted: SourceRequest, asked: _Asked) -> JobRecord:
        async with downloaded(wanted.source, self._data.uploads, self._config.serving) as upload:
            return await self._enter_upload(upload, wanted.options, asked)

    def _earlier(self, asked: _Asked) -> JobRecord | None:
        """The job the same request has made, if it is a repeated one; blocks."""
        return None if asked.key is None else self._store.repeated(asked.key, asked.request_hash)

    def _enter_path(self, wanted: SourceRequest, asked: _Asked) -> JobRecord:
        path = allowed_path(wanted.source, self._config.paths.media_roots)
        check_video(path, wanted.source, self._config.serving.limits)
        return self._enter(path, shown_name(wanted.source), wanted.options, asked)

    def _enter_live(self, wanted: SourceRequest, asked: _Asked) -> JobRecord:
        LiveGate(self._config.serving).check(wanted.source)
        name = public_name(wanted.source)
        return self._enter(Path(name), name, wanted.options, asked, address=wanted.source)

    async def _enter_upload(self, upload: Upload, options: JobOptions, asked: _Asked) -> JobRecord:
        self._metrics.upload_bytes.inc(upload.size)
        if asked.request_hash is None:
            asked = asked.hashed(f"{upload.sha256} {upload.name}", options)

        def enter() -> JobRecord:
            if (earlier := self._earlier(asked)) is not None:
                return earlier
            check_video(upload.path, upload.name, self._config.serving.limits)
            return self._enter(upload.path, upload.name, options, asked)

        # Neither half-entered nor lost if the client goes now: a thread does it to the end.
        return await asyncio.shield(asyncio.to_thread(enter))

    def _enter(
        self, video: Path, name: str, options: JobOptions, asked: _Asked, *, address: str | None = None
    ) -> JobRecord:
        """Make the folder, then the row, then queue it: cut short, nothing runs without its files."""
        job_id = new_job_id()
        folder = self._data.folder(job_id)
        try:
            job = JobFile(id=job_id, source=video, options=options, trace=asked.trace, address=address)
            self._fill(folder, video, job)
            record = self._store.insert(
                job_id,
                name,
                options,
                asked.key,
                request_hash=asked.request_hash,
                trace_id=asked.trace.trace_id,
            )
            if record.id != job_id:  # the same request was quicker
                folder.remove()
                return record
        except BaseException:
            folder.remove()
            raise
        self._queue.put(job_id)
        return record

    def _fill(self, folder: JobFolder, video: Path, job: JobFile) -> None:
        try:
            folder.path.mkdir(parents=True)
            if video.parent == self._data.uploads:
                video.rename(folder.upload)
                job = job.model_copy(update={"source": Path(folder.upload.name)})
            job.write(folder.job_file)
        except OSError as error:
            raise StorageFull(f"the job's folder cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request says of itself. `request_hash` is the same for the same video and options; None until known."""

    key: str | None
    trace: TraceContext
    request_hash: str | None = None

    def hashed(self, video: str, options: JobOptions) -> _Asked:
        """With the hash of what is asked for."""
        content = json.dumps([video, options.model_dump(mode="json", exclude_defaults=True)])
        return replace(self, request_hash=hashlib.sha256(content.encode()).hexdigest())


def _trace(request: Request) -> TraceContext:
    """The job's span: part of the client's trace where it names one."""
    asking = TraceContext.parse(request.headers.get(TRACEPARENT_HEADER))
    return TraceContext.new() if asking is None else asking.child()


def _key(request: Request) -> str | None:
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is not None and not 0 < len(key) <= _MAX_KEY_LENGTH:
        raise RequestError(f"{IDEMPOTENCY_HEADER} must have 1 to {_MAX_KEY_LENGTH} characters, not {len(key)}")
    return key


async def _json_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in in_time(request.stream()):
        body += chunk
        if len(body) > _MAX_JSON_BYTES:
            raise BodyTooLarge(f"the body is over {_MAX_JSON_BYTES} bytes")
    return bytes(body)


def _options(text: bytes) -> JobOptions:
    try:
        options = JobOptions.model_validate_json(text or b"{}")
    except ValidationError as error:
        raise RequestError(f"options: {_first_problem(error)}") from error
    if options.live:
        raise RequestError("options: live: is for a source named by its URL, not for a video that is sent")
    return options


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'body'}: {first['msg']}"
