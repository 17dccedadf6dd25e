"""From a request to a queued job: received, looked at, put in a folder of its own, entered, queued."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.concurrency import run_in_threadpool

from pipeline_ver2.config import Config
from pipeline_ver2.errors import BodyTooLarge, QueueFull, RequestError, StorageFull
from pipeline_ver2.wire import IDEMPOTENCY_HEADER
from serving.durability import Queue
from serving.job_metrics import JobMetrics
from serving.jobs import DataDir, JobFile, JobFolder, JobOptions, JobRecord, new_job_id
from serving.sources import allowed_path, check_video
from serving.store import JobStore
from serving.uploads import MEGABYTE, Upload, received, shown_name

RETRY_AFTER_S = 10.0

_MAX_JSON_BYTES = 64 * 1024
_MAX_KEY_LENGTH = 200


class SourceRequest(BaseModel):
    """The JSON body of a job whose video lies on the server: an absolute path under a media root."""

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
            RequestError: The request is not what it should be.
            VideoError: The video cannot be used.
            StorageFull: There is no room for it.
        """
        key = _key(request)
        if key is not None and (earlier := await asyncio.to_thread(self._store.by_key, key)) is not None:
            await _skip(request, int(self._config.serving.max_upload_mb * MEGABYTE))
            return earlier
        waiting = (await asyncio.to_thread(self._store.counts)).get("queued", 0)
        with self._place(waiting):
            if request.headers.get("content-type", "").partition(";")[0].strip() == "application/json":
                return await self._from_path(await _json_body(request), key)
            limit = int(self._config.serving.max_upload_mb * MEGABYTE)
            async with received(request, self._data.uploads, limit) as upload:
                self._metrics.upload_bytes.inc(upload.size)
                # Neither half-entered nor lost if the client goes now: a thread does it to the end.
                return await asyncio.shield(asyncio.to_thread(self._enter_upload, upload, key))

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

    async def _from_path(self, body: bytes, key: str | None) -> JobRecord:
        try:
            asked = SourceRequest.model_validate_json(body)
        except ValidationError as error:
            raise RequestError(_first_problem(error)) from error
        return await run_in_threadpool(self._enter_path, asked, key)

    def _enter_path(self, asked: SourceRequest, key: str | None) -> JobRecord:
        path = allowed_path(asked.source, self._config.paths.media_roots)
        check_video(path, asked.source, self._config.serving.limits)
        return self._enter(path, shown_name(asked.source), asked.options, key)

    def _enter_upload(self, upload: Upload, key: str | None) -> JobRecord:
        options = _options(upload.options)
        check_video(upload.path, upload.name, self._config.serving.limits)
        return self._enter(upload.path, upload.name, options, key)

    def _enter(self, video: Path, name: str, options: JobOptions, key: str | None) -> JobRecord:
        """Make the folder, then the row, then queue it: cut short, nothing runs without its files."""
        job_id = new_job_id()
        folder = self._data.folder(job_id)
        try:
            self._fill(folder, job_id, video, options)
            record = self._store.insert(job_id, name, options, key)
            if record.id != job_id:  # the same request was quicker
                folder.remove()
                return record
        except BaseException:
            folder.remove()
            raise
        self._queue.put(job_id)
        return record

    def _fill(self, folder: JobFolder, job_id: str, video: Path, options: JobOptions) -> None:
        try:
            folder.path.mkdir(parents=True)
            uploaded = video.parent == self._data.uploads
            if uploaded:
                video.rename(folder.upload)
            source = Path(folder.upload.name) if uploaded else video
            job = JobFile(id=job_id, source=source, options=options)
            folder.job_file.write_text(job.model_dump_json(indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise StorageFull(f"the job's folder cannot be written: {error.strerror}") from error


def _key(request: Request) -> str | None:
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is not None and not 0 < len(key) <= _MAX_KEY_LENGTH:
        raise RequestError(f"{IDEMPOTENCY_HEADER} must have 1 to {_MAX_KEY_LENGTH} characters, not {len(key)}")
    return key


async def _json_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_JSON_BYTES:
            raise BodyTooLarge(f"the body is over {_MAX_JSON_BYTES} bytes")
    return bytes(body)


async def _skip(request: Request, most: int) -> None:
    """Read what nobody needs: a connection that is closed over unread data takes the reply with it."""
    async for chunk in request.stream():
        most -= len(chunk)
        if most < 0:
            return


def _options(text: bytes) -> JobOptions:
    try:
        return JobOptions.model_validate_json(text or b"{}")
    except ValidationError as error:
        raise RequestError(f"options: {_first_problem(error)}") from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'body'}: {first['msg']}"
