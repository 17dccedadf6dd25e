"""The routes of the job API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline_ver2.command import VIDEO_NAME
from pipeline_ver2.event_file import EVENTS_NAME
from pipeline_ver2.report import PICTURE_NAME, TRACE_NAME
from pipeline_ver2.results import JOURNAL_NAME, RESULTS_NAME
from serving.jobs import JobOptions, JobState
from tests.serving.conftest import Api, ServeApi, enter, write_locked
from tests.stand_ins import stand_ins


async def call(api: Api, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, aiohttp.ClientResponse]:
    """Status, content (read as JSON where it is) and the reply itself."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    async with aiohttp.ClientSession() as session, session.request(method, api.url + path, headers=named) as reply:
        content = await reply.read()
        is_json = reply.content_type.endswith(("/json", "+json"))
        return reply.status, json.loads(content) if is_json else content, reply


def add(api: Api, job_id: str, state: JobState | None = None) -> None:
    """A job with its folder, ended in a state if one is given."""
    api.store.insert(job_id, f"{job_id}.mp4", JobOptions(), None)
    api.data.folder(job_id).path.mkdir()
    if state is not None:
        api.store.end(job_id, state)


@pytest.fixture
def api(serve_api: ServeApi) -> Api:
    """The API as it is by default."""
    return serve_api()


async def test_one_job(api: Api) -> None:
    """Its record, its progress and where its parts are."""
    add(api, "a")
    status, job, _ = await call(api, "/jobs/a")
    assert (status, job["id"], job["state"], job["progress"]["frames"]) == (200, "a", "queued", 0)
    assert job["links"]["events"] == "/jobs/a/events"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/events",
        "/results",
        "/results.jsonl",
        "/events.jsonl",
        "/timeline",
        "/timeline.svg",
        "/video",
        "/frame?time_s=0",
    ],
)
@pytest.mark.parametrize("job_id", ["none", "..%2f..%2fetc", "%00"])
async def test_a_job_that_does_not_exist(api: Api, job_id: str, path: str) -> None:
    """404, whatever it is called."""
    status, problem, _ = await call(api, f"/jobs/{job_id}{path}")
    assert (status, problem["status"]) == (404, 404)


async def test_pages(api: Api) -> None:
    """Newest first, `next` leads through all of them; by state; bounds of the size are told."""
    for job_id in "abcde":
        add(api, job_id, "failed" if job_id in "bd" else None)
    assert (await call(api, "/jobs?state=succeeded"))[1] == {"jobs": [], "next": None}
    seen, path = "", "/jobs?limit=2"
    while path:
        _, page, _ = await call(api, path)
        seen, path = seen + "".join(job["id"] for job in page["jobs"]), page["next"]
    assert seen == "edcba"
    _, page, _ = await call(api, "/jobs?state=failed&limit=1")
    assert [job["id"] for job in page["jobs"]] == ["d"]
    assert [job["id"] for job in (await call(api, page["next"]))[1]["jobs"]] == ["b"]
    for wrong in ("limit=0", "limit=1000", "state=lost", "before=yesterday"):
        assert (await call(api, f"/jobs?{wrong}"))[0] == 422


@pytest.mark.fault("O9")
async def test_cancelling_a_waiting_job(api: Api) -> None:
    """It ends at once, its upload goes; asked again, nothing changes."""
    add(api, "a")
    api.data.folder("a").upload.write_bytes(b"x")
    first = await call(api, "/jobs/a", "DELETE")
    assert (first[0], first[1]["state"]) == (200, "cancelled")
    assert not api.data.folder("a").upload.exists()
    assert (await call(api, "/jobs/a", "DELETE"))[1] == first[1]


@pytest.mark.fault("O9")
@pytest.mark.parametrize("state", ["succeeded", "partial", "failed"])
async def test_cancelling_an_ended_job(api: Api, state: JobState) -> None:
    """It stays as it ended, with its files."""
    add(api, "a", state)
    api.data.folder("a").upload.write_bytes(b"x")
    status, job, _ = await call(api, "/jobs/a", "DELETE")
    assert (status, job["state"]) == (200, state)
    assert api.data.folder("a").upload.exists()


@pytest.mark.fault("O9")
async def test_cancelling_a_job_whose_worker_is_away(api: Api) -> None:
    """The reply does not wait for ever, and the job is to end."""
    add(api, "a")
    api.store.start("a")
    status, job, _ = await call(api, "/jobs/a", "DELETE")
    assert (status, job["state"]) == (200, "running")
    assert api.store.is_cancel_asked("a")


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        ("results", RESULTS_NAME, "application/json"),
        ("results.jsonl", JOURNAL_NAME, "application/x-ndjson"),
        ("events.jsonl", EVENTS_NAME, "application/x-ndjson"),
        ("timeline", TRACE_NAME, "application/json"),
        ("timeline.svg", PICTURE_NAME, "image/svg+xml"),
        ("video", VIDEO_NAME, "video/mp4"),
    ],
)
async def test_files_of_a_job(api: Api, path: str, name: str, kind: str) -> None:
    """409 until it has ended, then the file, or 404 if it ended without it."""
    add(api, "a")
    (api.data.folder("a").path / name).write_bytes(b'"0123456789"')
    assert (await call(api, f"/jobs/a/{path}"))[0] == 409
    assert (await call(api, "/jobs/a"))[1]["available"] == []
    api.store.end("a", "succeeded")
    status, _, reply = await call(api, f"/jobs/a/{path}")
    assert (status, reply.content_type, reply.headers["X-Content-Type-Options"]) == (200, kind, "nosniff")
    assert (await call(api, "/jobs/a"))[1]["available"] == [path]
    add(api, "b", "failed")
    assert (await call(api, f"/jobs/b/{path}"))[0] == 404


async def test_files_of_a_live_job(api: Api) -> None:
    """All its records so far, over all files, also while it runs; pictures never, whatever became of it."""
    enter(api.data, api.store, "a", Path("camera"), live=True)
    folder = api.data.folder("a").path
    assert (await call(api, "/jobs/a/results.jsonl"))[0] == 409
    (folder / "results-000002.jsonl").write_text("2\n")
    (folder / "results-000010.jsonl").write_text("10\nto")
    (folder / JOURNAL_NAME).write_text("11\n")
    for _ in range(2):
        status, content, reply = await call(api, "/jobs/a/results.jsonl")
        assert (status, content, reply.content_type) == (200, b"2\n10\n11\n", "application/x-ndjson")
        assert (await call(api, "/jobs/a"))[1]["available"] == ["results.jsonl"]
        for path in ("video", "frame?time_s=0"):
            status, problem, _ = await call(api, f"/jobs/a/{path}")
            assert (status, "live source" in problem["detail"]) == (404, True)
        api.store.end("a", "cancelled")


async def test_ranges_of_the_video(api: Api) -> None:
    """A player may jump; beyond the end is told."""
    add(api, "a", "succeeded")
    (api.data.folder("a").path / VIDEO_NAME).write_bytes(b"0123456789")
    status, content, reply = await call(api, "/jobs/a/video", Range="bytes=2-4")
    assert (status, content, reply.headers["Content-Range"]) == (206, b"234", "bytes 2-4/10")
    assert (await call(api, "/jobs/a/video", Range="bytes=-2"))[1] == b"89"
    assert (await call(api, "/jobs/a/video", Range="bytes=99-"))[0] == 416
    assert (await call(api, "/jobs/a/video", Range="bytes=7-7"))[1] == b"7"


async def test_frames(api: Api, clip: Path) -> None:
    """Pictures of the source, for a browser to keep, while the source is there; times must be times."""
    enter(api.data, api.store, "a", clip)
    status, content, reply = await call(api, "/jobs/a/frame?time_s=1.0")
    assert (status, reply.content_type, content[:3]) == (200, "image/jpeg", b"\xff\xd8\xff")
    assert reply.headers["Cache-Control"].startswith("private")
    assert (await call(api, "/jobs/a/frame?time_s=99"))[0] == 404
    for wrong in ("", "?time_s=-1", "?time_s=nan", "?time_s=inf", "?time_s=soon"):
        assert (await call(api, f"/jobs/a/frame{wrong}"))[0] == 422
    add(api, "b")
    assert (await call(api, "/jobs/b/frame?time_s=1.0"))[0] == 404


@pytest.mark.parametrize(("after", "slots"), [(None, 2), ("0", 2), ("first", 1), ("nonsense", 2), ("", 2)])
async def test_events(api: Api, after: str | None, slots: int) -> None:
    """As a browser reads them, from the record on that it has seen last."""
    add(api, "a")
    lines = ['{"type":"header"}\n', '{"type":"slot","index":0}\n', '{"type":"slot","index":1}\n']
    (api.data.folder("a").path / JOURNAL_NAME).write_text("".join(lines))
    api.store.end("a", "succeeded")
    if after == "first":
        after = str(len("".join(lines[:2])))
    headers = {} if after is None else {"Last_Event_ID": after}
    status, content, reply = await call(api, "/jobs/a/events", **headers)
    assert (status, reply.content_type) == (200, "text/event-stream")
    assert content.count(b"event: slot\n") == slots
    assert content.count(b"event: end\n") == 1


async def test_health(api: Api) -> None:
    """Alive without its stages, but not ready; it says which one is away."""
    assert (await call(api, "/livez"))[0] == 200
    status, problem, _ = await call(api, "/readyz")
    assert (status, problem["retryable"]) == (503, True)
    assert "Stage" in problem["detail"]


async def test_ready_with_both_stages(serve_api: ServeApi) -> None:
    """With both stages up and room in the queue."""
    async with stand_ins() as stages:
        api = serve_api(stages.overrides(), max_queue=1)
        assert (await call(api, "/readyz"))[0] == 200
        add(api, "a")
        status, problem, _ = await call(api, "/readyz")
        assert status == 503
        assert "queue" in problem["detail"]


async def test_not_ready_without_room(serve_api: ServeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both stages up, but no space on the disk."""
    async with stand_ins() as stages:
        api = serve_api(stages.overrides())
        monkeypatch.setattr("serving.uploads.MIN_FREE_BYTES", 10**18)
        status, problem, _ = await call(api, "/readyz")
        assert (status, problem["code"]) == (507, "storage_full")


async def test_metrics(api: Api) -> None:
    """Jobs of every state, the disk, and requests by route, whatever their paths were."""
    await call(api, "/jobs/none")
    add(api, "a", "failed")
    add(api, "b")
    _, text, _ = await call(api, "/metrics")
    for line in (b'zroact_jobs{state="queued"} 1.0', b'zroact_jobs{state="failed"} 1.0', b"zroact_disk_free_bytes "):
        assert line in text
    assert b'zroact_http_requests_total{route="/jobs/{job_id}",status="404"} 1.0' in text


async def test_the_documentation(api: Api) -> None:
    """It shows how to send a video, and every route."""
    assert (await call(api, "/docs"))[0] == 200
    _, schema, _ = await call(api, "/openapi.json")
    kinds = schema["paths"]["/jobs"]["post"]["requestBody"]["content"]
    assert set(kinds) == {"multipart/form-data", "application/json"}
    assert {"/jobs/{job_id}/events", "/jobs/{job_id}/video", "/livez", "/readyz", "/metrics"} <= set(schema["paths"])


async def test_a_token_is_asked_for_everywhere_but_for_health(serve_api: ServeApi) -> None:
    """Routes, documentation and metrics."""
    api = serve_api(token="secret")
    for path in ("/jobs", "/jobs/a", "/jobs/a/video", "/metrics", "/docs", "/openapi.json"):
        assert (await call(api, path))[0] == 401
    assert (await call(api, "/jobs", Authorization="Bearer secret"))[0] == 200
    assert (await call(api, "/livez"))[0] == 200


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a database that somebody else has locked."""
    monkeypatch.setattr("serving.store._LOCK_WAIT_S", 0)


@pytest.mark.usefixtures("impatient")
async def test_a_database_that_takes_nothing(serve_api: ServeApi) -> None:
    """503, which may be tried again; when it takes things again, so does the API."""
    api = serve_api()
    add(api, "a")
    with write_locked(api.data):
        status, problem, _ = await call(api, "/jobs/a", "DELETE")
    assert (status, problem["code"], problem["retryable"]) == (503, "database_away", True)
    status, job, _ = await call(api, "/jobs/a", "DELETE")
    assert (status, job["state"]) == (200, "cancelled")
