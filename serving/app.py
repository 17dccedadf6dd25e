"""The job API: send a video, follow its job, fetch what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
from fastapi import APIRouter, FastAPI, Header, Query, Request, Response, status
from fastapi.responses import FileResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from pipeline_ver2.command import VIDEO_NAME
from pipeline_ver2.config import Config
from pipeline_ver2.errors import (
    ConfigError,
    DatabaseAway,
    JobNotEnded,
    NothingThere,
    QueueFull,
    RequestError,
    ResultsError,
    StageUnreachable,
    UnknownJob,
)
from pipeline_ver2.event_file import EVENTS_NAME
from pipeline_ver2.report import PICTURE_NAME, TRACE_NAME
from pipeline_ver2.results import JOURNAL_NAME, RESULTS_NAME
from pipeline_ver2.stage_probe import address_of, find_stage
from pipeline_ver2.trace_context import TRACEPARENT_HEADER
from pipeline_ver2.wire import IDEMPOTENCY_HEADER
from serving import problems
from serving.frames import FrameCutter
from serving.intake import Intake, SourceRequest
from serving.job_metrics import JobMetrics
from serving.jobs import DataDir, JobFile, JobOptions, JobRecord, JobState
from serving.page import Page
from serving.progress import Progress, follow, read_progress
from serving.security import Guard
from serving.store import JobStore
from serving.stored_file import StoredFile
from serving.tails import JournalTail
from serving.uploads import check_room
from serving.workers.daemon import RequestCounter

CANCEL_WAIT_S = 1.8
"""A cancelled job is waited for so long, that the reply can say it has ended."""
MAX_FOLLOWERS = 100

_CANCEL_LOOK_S = 0.05
_LONGEST_S = 1e7
_LONGEST_POSITION = 18
_FILES = {
    "results": RESULTS_NAME,
    "results.jsonl": JOURNAL_NAME,
    "events.jsonl": EVENTS_NAME,
    "timeline": TRACE_NAME,
    "timeline.svg": PICTURE_NAME,
    "video": VIDEO_NAME,
}
_AS_IT_IS = {"X-Content-Type-Options": "nosniff"}
_CURSOR = r"^[0-9]{1,12}(\.[0-9]{1,6})?~[0-9a-z]{1,32}$"
_EVERYWHERE = (401, 403, 422, 429, 503)
_OF_ONE_JOB = problems.documented(404)
_OF_A_FILE = {
    **problems.documented(404, 409, 416),
    200: {"content": {"*/*": {}}, "description": "The file."},
    206: {"content": {"*/*": {}}, "description": "The part of it that `Range` asks for."},
}
_OF_A_FRAME = {**_OF_ONE_JOB, 200: {"content": {"image/jpeg": {}}, "description": "The picture."}}
_OF_EVENTS = {**_OF_ONE_JOB, 200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."}}
_OF_METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}, "description": "Prometheus text."}}


class JobReply(JobRecord):
    """A job, how far it is, and where its parts are; those in `available` are there to be fetched."""

    progress: Progress
    links: dict[str, str]
    available: list[str]


class JobPage(BaseModel):
    """Jobs, newest first; `next` leads to older ones, null where there are none."""

    jobs: list[JobRecord]
    next: str | None


class JobApi:
    """The routes of the API, and what they work with.

    Args:
        config: The configuration.
        store: The table of jobs.
        data: Where jobs have their folders.
        intake: Takes new jobs in.
        metrics: Shown at `/metrics`.
    """

    def __init__(self, config: Config, store: JobStore, data: DataDir, intake: Intake, metrics: JobMetrics) -> None:
        self._config = config
        self._store = store
        self._data = data
        self._intake = intake
        self._metrics = metrics
        self._cutter = FrameCutter()
        self._followers = 0
        self.stopping = asyncio.Event()

    def build(self) -> FastAPI:
        """The application."""
        app = FastAPI(title="zroact-stage2 jobs", responses=problems.documented(*_EVERYWHERE))
        problems.install(app)
        app.add_middleware(Guard, token=self._config.serving.token)
        app.add_middleware(RequestCounter, requests=self._metrics.requests)
        app.include_router(self._job_routes())
        app.include_router(self._health_routes())
        app.include_router(Page(self._config.serving.token).routes())
        return app

    def _job_routes(self) -> APIRouter:
        router = APIRouter(tags=["jobs"])
        router.add_api_route(
            "/jobs",
            self.create,
            methods=["POST"],
            status_code=status.HTTP_202_ACCEPTED,
            openapi_extra={"requestBody": _request_body(), "parameters": _request_headers()},
            responses=problems.documented(408, 413, 502, 507),
        )
        router.add_api_route("/jobs", self.page, methods=["GET"])
        router.add_api_route("/jobs/{job_id}", self.job, methods=["GET"], responses=_OF_ONE_JOB)
        router.add_api_route("/jobs/{job_id}", self.cancel, methods=["DELETE"], responses=_OF_ONE_JOB)
        router.add_api_route(
            "/jobs/{job_id}/events",
            self.events,
            methods=["GET"],
            response_class=StreamingResponse,
            responses=_OF_EVENTS,
        )
        for path, endpoint in (
            ("results", self.results),
            ("results.jsonl", self.journal),
            ("events.jsonl", self.found_events),
            ("timeline", self.timeline),
            ("timeline.svg", self.picture),
            ("video", self.video),
        ):
            router.add_api_route(
                f"/jobs/{{job_id}}/{path}",
                endpoint,
                methods=["GET"],
                response_class=FileResponse,
                responses=_OF_A_FILE,
            )
        router.add_api_route(
            "/jobs/{job_id}/frame", self.frame, methods=["GET"], response_class=Response, responses=_OF_A_FRAME
        )
        return router

    def _health_routes(self) -> APIRouter:
        router = APIRouter(tags=["health"])
        router.add_api_route("/livez", self.livez, methods=["GET"])
        router.add_api_route("/readyz", self.readyz, methods=["GET"], responses=problems.documented(507))
        router.add_api_route(
            "/metrics", self.show_metrics, methods=["GET"], response_class=Response, responses=_OF_METRICS
        )
        return router

    async def create(self, request: Request, response: Response) -> JobReply:
        """Queue a video. With an `Idempotency-Key`, asking again gives the same job."""
        record = await self._intake.take(request)
        response.headers["Location"] = f"/jobs/{record.id}"
        return await self._reply(record)

    async def page(
        self,
        state: JobState | None = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        before: Annotated[str | None, Query(description="from `next` of the page before", pattern=_CURSOR)] = None,
    ) -> JobPage:
        """Jobs, newest first."""
        found = await asyncio.to_thread(self._store.page, state=state, limit=limit + 1, before=_cursor(before))
        jobs, more = found[:limit], len(found) > limit
        if not more:
            return JobPage(jobs=jobs, next=None)
        chosen = "" if state is None else f"&state={state}"
        place = f"{jobs[-1].created_at.timestamp():.6f}~{jobs[-1].id}"
        return JobPage(jobs=jobs, next=f"/jobs?limit={limit}{chosen}&before={place}")

    async def job(self, job_id: str) -> JobReply:
        """One job and how far it is."""
        return await self._reply(await self._record(job_id))

    async def cancel(self, job_id: str) -> JobReply:
        """End a job; one that has ended stays as it is. What it has found so far is kept."""
        record = await asyncio.to_thread(self._store.ask_cancel, job_id)
        give_up_at = asyncio.get_running_loop().time() + CANCEL_WAIT_S
        while not record.has_ended and asyncio.get_running_loop().time() < give_up_at:
            await asyncio.sleep(_CANCEL_LOOK_S)
            record = await self._record(job_id)
        if record.state == "cancelled":
            await asyncio.to_thread(self._data.folder(job_id).upload.unlink, missing_ok=True)
        return await self._reply(record)

    async def events(self, job_id: str, last_event_id: Annotated[str, Header()] = "0") -> StreamingResponse:
        """Server-sent events: `state`, `progress`, each `keyframe` and `slot` as it comes, `warning`, `end`.

        `Last-Event-ID` goes on behind the record of that id. After `end` there is nothing more. Of a live source the
        last records come without it, not all; there is `gap` as well, and `run`: where that is another one than before,
        numbers and times begin anew.
        """
        record = await self._record(job_id)
        if self._followers >= MAX_FOLLOWERS:
            raise QueueFull(f"{self._followers} clients follow jobs already", retry_after_s=5)
        is_position = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= _LONGEST_POSITION
        offset = int(last_event_id) if is_position else 0
        return StreamingResponse(
            self._follow(record, offset), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    async def results(self, job_id: str) -> FileResponse:
        """results.json of a job that has ended."""
        return await self._file(job_id, RESULTS_NAME, "application/json")

    async def journal(self, job_id: str) -> Response:
        """results.jsonl of a job that has ended: one record a line, as they came; of a live source at any time."""
        record = await self._record(job_id)
        if record.options.live and (record.has_ended or "results.jsonl" in await self._are_available(record)):
            return StreamingResponse(self._all_records(record), media_type="application/x-ndjson", headers=_AS_IT_IS)
        return await self._file(job_id, JOURNAL_NAME, "application/x-ndjson")

    async def found_events(self, job_id: str) -> FileResponse:
        """events.jsonl of a job that has ended: who did what from when to when."""
        return await self._file(job_id, EVENTS_NAME, "application/x-ndjson")

    async def timeline(self, job_id: str) -> FileResponse:
        """Both stages over time as a Chrome trace, for https://ui.perfetto.dev."""
        return await self._file(job_id, TRACE_NAME, "application/json")

    async def picture(self, job_id: str) -> FileResponse:
        """Both stages over time as a picture."""
        return await self._file(job_id, PICTURE_NAME, "image/svg+xml")

    async def video(self, job_id: str) -> FileResponse:
        """The annotated video; `Range` gives parts of it. Of a live source there is none."""
        _check_kept(await self._record(job_id))
        return await self._file(job_id, VIDEO_NAME, "video/mp4")

    async def frame(
        self, job_id: str, time_s: Annotated[float, Query(ge=0, le=_LONGEST_S, allow_inf_nan=False)]
    ) -> Response:
        """The frame of the source at the `time_s` of a keyframe, as a small JPEG; there while the source is kept."""
        _check_kept(await self._record(job_id))
        try:
            job = await asyncio.to_thread(JobFile.read, self._data.folder(job_id).job_file)
        except ResultsError as error:
            raise NothingThere(f"job {job_id} has no source any more") from error
        picture = await self._cutter.cut(job.source, time_s)
        return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400"})

    async def livez(self) -> dict[str, str]:
        """The process answers."""
        return {"status": "alive"}

    async def readyz(self) -> dict[str, str]:
        """A job that comes now could be taken and run: room in the queue and on the disk, both stages up."""
        waiting = (await asyncio.to_thread(self._store.counts)).get("queued", 0)
        if waiting >= self._intake.max_queue:
            raise StageUnreachable(f"queue: {waiting} jobs wait, there is room for no more")
        await asyncio.to_thread(check_room, self._data.path)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            await asyncio.gather(*(self._check_stage(session, stage) for stage in ("stage1", "stage2")))
        return {"status": "ready"}

    async def show_metrics(self) -> Response:
        """Prometheus text."""
        text = await asyncio.to_thread(generate_latest, self._metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def _record(self, job_id: str) -> JobRecord:
        return await asyncio.to_thread(self._store.get, job_id)

    async def _reply(self, record: JobRecord) -> JobReply:
        progress = await asyncio.to_thread(read_progress, self._data.folder(record.id))
        available = await self._are_available(record)
        parts = ("events", *_FILES, "frame")
        links = {"self": f"/jobs/{record.id}", **{part: f"/jobs/{record.id}/{part}" for part in parts}}
        return JobReply(**record.model_dump(), progress=progress, links=links, available=available)

    async def _are_available(self, record: JobRecord) -> list[str]:
        folder = self._data.folder(record.id).path
        while_it_runs = ["results.jsonl"] if record.options.live else []
        wanted = list(_FILES) if record.has_ended else while_it_runs
        return await asyncio.to_thread(lambda: [part for part in wanted if (folder / _FILES[part]).is_file()])

    async def _file(self, job_id: str, name: str, media_type: str) -> FileResponse:
        record = await self._record(job_id)
        if not record.has_ended:
            raise JobNotEnded(f"job {job_id} is {record.state}; this is there when it has ended")
        path: Path = self._data.folder(job_id).path / name
        if not await asyncio.to_thread(path.is_file):
            raise NothingThere(f"job {job_id} ended ({record.state}) without it")
        return StoredFile(path, media_type=media_type, headers=_AS_IT_IS)

    async def _all_records(self, record: JobRecord) -> AsyncIterator[bytes]:
        """The files of a journal, one after the other, to where the last ends by then."""
        tail = await asyncio.to_thread(JournalTail, self._data.folder(record.id).path)
        while lines := await asyncio.to_thread(tail.lines):
            yield b"".join(line for line, _ in lines)

    async def _follow(self, record: JobRecord, offset: int) -> AsyncIterator[bytes]:
        async def look() -> JobRecord | None:
            try:
                return await self._record(record.id)
            except (UnknownJob, DatabaseAway):  # the stream breaks off, and clients come again
                return None

        self._followers += 1
        try:
            folder, live = self._data.folder(record.id), record.options.live
            async for event in follow(folder, look, offset, self.stopping, live=live):
                yield event
        finally:
            self._followers -= 1

    async def _check_stage(self, session: aiohttp.ClientSession, stage: Literal["stage1", "stage2"]) -> None:
        try:
            address = address_of(self._config, stage)
        except ConfigError as error:
            raise StageUnreachable(str(error)) from error
        found = await find_stage(session, address)
        if found.state != "ready":
            raise StageUnreachable(f"{address.title} at {address.url} is {found.state}: {found.detail}")


def _check_kept(record: JobRecord) -> None:
    if record.options.live:
        raise NothingThere(f"job {record.id} follows a live source, whose pictures are not kept")


def _cursor(text: str | None) -> tuple[float, str] | None:
    if text is None:
        return None
    time, _, job_id = text.partition("~")
    try:
        return float(time), job_id
    except ValueError as error:
        raise RequestError("before: take it from `next` of the page before") from error


def _request_headers() -> list[dict[str, Any]]:
    """What the documentation says of headers that the intake reads."""
    said = {
        IDEMPOTENCY_HEADER: (
            "The same key, video and options again are the same job.",
            {"minLength": 1, "maxLength": 200},
        ),
        TRACEPARENT_HEADER: ("The span of a trace (W3C) that the job is part of.", {}),
    }
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string", **bounds}}
        for name, (text, bounds) in said.items()
    ]


def _request_body() -> dict[str, Any]:
    """What the documentation says of the body, which no framework reads here."""
    form = {
        "type": "object",
        "required": ["video"],
        "properties": {"video": {"type": "string", "format": "binary"}, "options": JobOptions.model_json_schema()},
    }
    source = SourceRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    source.pop("$defs", None)
    source["properties"]["options"] = JobOptions.model_json_schema()
    return {
        "required": True,
        "content": {"multipart/form-data": {"schema": form}, "application/json": {"schema": source}},
    }
