"""From requests to queued jobs, over real connections."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline_ver2.trace_context import TraceContext
from serving.jobs import JobFile
from tests.film_site import film_site
from tests.serving.conftest import Api, ServeApi

ID = re.compile(r"[0-9a-f]{16}")


def form_of(video: bytes, name: str = "clip.mp4", options: dict[str, Any] | None = None) -> aiohttp.FormData:
    """A form with a video, and options if there are any."""
    form = aiohttp.FormData(quote_fields=False)
    if options is not None:
        form.add_field("options", json.dumps(options))
    form.add_field("video", video, filename=name)
    return form


async def post(api: Api, body: aiohttp.FormData | dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
    """Ask for a job; the status and the reply."""
    sent: dict[str, Any] = {"json": body} if isinstance(body, dict) else {"data": body}
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    async with aiohttp.ClientSession() as session, session.post(f"{api.url}/jobs", headers=named, **sent) as reply:
        content = await reply.json()
        if reply.status == 202:
            assert reply.headers["Location"] == f"/jobs/{content['id']}"
        if reply.status == 429:
            assert int(reply.headers["Retry-After"]) > 0
        return reply.status, content


async def test_an_upload_becomes_a_queued_job(serve_api: ServeApi, film: bytes) -> None:
    """With its file, its options and its row; nothing else is left."""
    api = serve_api()
    status, job = await post(api, form_of(film, options={"gate": "detections"}))
    assert (status, job["state"], job["name"]) == (202, "queued", "clip.mp4")
    assert api.queue.ids == [job["id"]]
    folder = api.data.folder(job["id"])
    assert folder.upload.read_bytes() == film
    assert JobFile.read(folder.job_file).options.gate == "detections"
    assert sorted(api.leftovers()) == sorted(f"jobs/{job['id']}{end}" for end in ("", "/job.json", "/source"))


@pytest.mark.fault("O8")
@pytest.mark.fault("V13")
@pytest.mark.parametrize("name", ["../../evil.mp4", "/etc/passwd", "..", "ä 映像 '%05d' #.mp4", "x" * 300])
async def test_names_lead_nowhere(serve_api: ServeApi, film: bytes, name: str) -> None:
    """Two uploads of one name, whatever it is, are two jobs with files of our names."""
    api = serve_api()
    jobs = [await post(api, form_of(film, name)) for _ in range(2)]
    assert [status for status, _ in jobs] == [202, 202]
    ids = {job["id"] for _, job in jobs}
    assert len(ids) == 2
    assert all(ID.fullmatch(job_id) for job_id in ids)
    assert {path.name for path in api.data.path.rglob("*")} >= {"source", "job.json"}
    assert {path.rpartition("/")[2] for path in api.leftovers()} == {*ids, "source", "job.json"}


async def test_a_video_on_the_server(serve_api: ServeApi, film: bytes, tmp_path: Path) -> None:
    """Named by its path, it is used where it is."""
    (tmp_path / "media").mkdir()
    path = tmp_path / "media" / "film.mp4"
    path.write_bytes(film)
    api = serve_api()
    status, job = await post(api, {"source": str(path), "options": {"annotate": False}})
    assert (status, job["name"]) == (202, "film.mp4")
    assert JobFile.read(api.data.folder(job["id"]).job_file).source == path


@pytest.mark.fault("O8")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"source": "/etc/passwd"}, 403),
        ({"source": "http://127.0.0.1/film.mp4"}, 403),
        ({"source": 1}, 422),
        ({"film": "a"}, 422),
        ({"source": "a", "options": {"gate": "some"}}, 422),
        ({"source": "x" * 70_000}, 413),
        ({"source": "a", "options": {"policy": "WAIT"}}, 422),
        ({"source": "rtsp://127.0.0.1/stream"}, 403),
        ({"source": "rtsp://127.0.0.1/stream", "options": {"live": True}}, 403),
        ({"source": "rtsp://[secret", "options": {"live": True}}, 422),
        ({"source": "/dev/video0", "options": {"live": True}}, 403),
    ],
)
async def test_sources_that_are_refused(serve_api: ServeApi, body: dict[str, Any], status: int) -> None:
    """Nothing is left, nothing is queued."""
    api = serve_api()
    assert (await post(api, body))[0] == status
    assert (api.leftovers(), api.queue.ids, api.store.counts()) == ([], [], {})


@pytest.mark.fault("V9")
@pytest.mark.fault("O7")
@pytest.mark.parametrize(
    ("video", "options", "status", "code"),
    [
        (b"", {}, 422, "video"),
        (b"text " * 100, {}, 422, "video"),
        (bytes(300_000), {}, 413, "body_too_large"),
        (b"text", {"gate": "some"}, 422, "bad_request"),
        (b"text", {"speed": 2}, 422, "bad_request"),
        (b"text", {"live": True}, 422, "bad_request"),
    ],
)
async def test_uploads_that_are_refused(
    serve_api: ServeApi, video: bytes, options: dict[str, Any], status: int, code: str
) -> None:
    """With a problem that says why, and nothing is left."""
    api = serve_api(max_upload_mb=0.1)
    found, problem = await post(api, form_of(video, options=options))
    assert (found, problem["code"]) == (status, code)
    assert (api.leftovers(), api.queue.ids, api.store.counts()) == ([], [], {})


@pytest.mark.fault("O7")
async def test_an_upload_cut_in_the_middle(serve_api: ServeApi, film: bytes) -> None:
    """No job, no file."""
    api = serve_api()
    host, _, port = api.url.removeprefix("http://").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = "POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    part = '--e\r\nContent-Disposition: form-data; name="video"; filename="a.mp4"\r\n\r\n'
    writer.write(f"{head}Content-Type: multipart/form-data; boundary=e\r\n\r\n{part}".encode())
    writer.write(film[:1000])
    await writer.drain()
    async with asyncio.timeout(30):
        while not api.leftovers():  # noqa: ASYNC110 - another thread writes the file
            await asyncio.sleep(0.01)
        writer.close()
        while api.leftovers():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (api.queue.ids, api.store.counts()) == ([], {})


async def test_one_key_is_one_job(serve_api: ServeApi, film: bytes) -> None:
    """Asked again, later or at the same time, the same job is the answer, and its video is kept once."""
    api = serve_api()
    content = film
    replies = await asyncio.gather(*(post(api, form_of(content), Idempotency_Key="mine") for _ in range(4)))
    replies.append(await post(api, form_of(content), Idempotency_Key="mine"))
    assert {status for status, _ in replies} == {202}
    ids = {job["id"] for _, job in replies}
    assert len(ids) == 1
    assert set(api.queue.ids) == ids
    assert len(api.leftovers()) == 3
    assert (await post(api, form_of(content), Idempotency_Key="other"))[1]["id"] not in ids


async def test_a_key_with_another_request(serve_api: ServeApi, film: bytes) -> None:
    """Another video, other options or another source: a problem, and the first job stays the only one."""
    api = serve_api()
    _, first = await post(api, form_of(film), Idempotency_Key="mine")
    left = sorted(api.leftovers())
    for other in (form_of(film[:-1]), form_of(film, options={"gate": "all"}), {"source": "/media/film.mp4"}):
        status, problem = await post(api, other, Idempotency_Key="mine")
        assert (status, problem["code"]) == (422, "idempotency_key_reused")
    assert (await post(api, form_of(film, options={"annotate": True}), Idempotency_Key="mine"))[1]["id"] == first["id"]
    assert (api.queue.ids, sorted(api.leftovers())) == ([first["id"]], left)


async def test_a_key_with_two_requests_at_once(serve_api: ServeApi, film: bytes) -> None:
    """Whichever is entered first has it: all of its kind get that job, the others a problem, and nothing is left."""
    api = serve_api()
    forms = [form_of(film, options={"gate": gate}) for gate in ("all", "detections") for _ in range(4)]
    replies = await asyncio.gather(*(post(api, form, Idempotency_Key="mine") for form in forms))
    assert sorted(status for status, _ in replies) == [202] * 4 + [422] * 4
    ids = {reply["id"] for status, reply in replies if status == 202}
    assert (set(api.queue.ids), len(ids), len(api.leftovers())) == (ids, 1, 3)


async def test_a_video_from_a_url(serve_api: ServeApi, film: bytes) -> None:
    """It becomes a file of ours, under the name of its URL; with a key, it is fetched once."""
    async with film_site(film) as site:
        api = serve_api(allowed_hosts=[site.place], downloads__private=True)
        asked = {"source": f"{site.url}/film.mp4?a=../../b", "options": {"annotate": False}}
        status, job = await post(api, asked, Idempotency_Key="mine")
        assert (status, job["name"]) == (202, "film.mp4")
        assert api.data.folder(job["id"]).upload.read_bytes() == film
        assert sorted(api.leftovers()) == sorted(f"jobs/{job['id']}{end}" for end in ("", "/job.json", "/source"))
        assert (await post(api, asked, Idempotency_Key="mine"))[1]["id"] == job["id"]
        assert (await post(api, {"source": f"{site.url}/other.mp4"}, Idempotency_Key="mine"))[0] == 422
        assert len(site.asked) == 1


@pytest.mark.fault("O7")
@pytest.mark.fault("O8")
@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/missing", 502, "source_unreachable"),
        ("/cut", 502, "source_unreachable"),
        ("/lead?to=http://10.0.0.1/", 403, "source_refused"),
        ("/stream", 413, "body_too_large"),
        ("/film.mp4", 422, "video"),
    ],
)
async def test_urls_that_give_no_video(serve_api: ServeApi, path: str, status: int, code: str) -> None:
    """A problem says why; nothing is left, nothing is queued."""
    async with film_site(b"text " * 1000) as site:
        api = serve_api(allowed_hosts=[site.place], downloads__private=True, max_upload_mb=0.1)
        found, problem = await post(api, {"source": site.url + path})
        assert (found, problem["code"]) == (status, code)
    assert (api.leftovers(), api.queue.ids, api.store.counts()) == ([], [], {})


@pytest.mark.fault("O7")
async def test_a_live_source(serve_api: ServeApi) -> None:
    """Nothing is connected to yet; its password is in the job's own file and nowhere else."""
    api = serve_api(allowed_hosts=["127.0.0.1:9"], downloads__private=True)
    source = "rtsp://user:secret@127.0.0.1:9//stream?token=secret"
    body = {"source": source, "options": {"live": True, "deadline_s": 3}}
    status, job = await post(api, body, Idempotency_Key="a")
    assert status == 202
    assert (job["name"], job["options"]["deadline_s"]) == ("rtsp://127.0.0.1:9//stream", 3)
    assert "secret" not in json.dumps(job)
    assert api.queue.ids == [job["id"]]
    assert JobFile.read(api.data.folder(job["id"]).job_file).address == source
    assert (await post(api, body, Idempotency_Key="a"))[1]["id"] == job["id"]
    database = b"".join(file.read_bytes() for file in api.data.path.glob("jobs.sqlite*"))
    assert b"secret" not in database


async def test_a_client_that_does_not_wait_for_a_download(serve_api: ServeApi) -> None:
    """The download ends with its client."""
    async with film_site() as site, asyncio.timeout(30):
        api = serve_api(allowed_hosts=[site.place], downloads__private=True)
        asking = asyncio.create_task(post(api, {"source": f"{site.url}/stream?pause=0.01"}))
        while not api.leftovers():  # noqa: ASYNC110 - another thread writes the file
            await asyncio.sleep(0.01)
        asking.cancel()
        await site.gone.wait()
        while api.leftovers():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (api.queue.ids, api.store.counts()) == ([], {})


@pytest.mark.parametrize("sent", [True, False])
async def test_a_job_has_a_place_in_a_trace(serve_api: ServeApi, film: bytes, sent: bool) -> None:  # noqa: FBT001
    """In its client's where that names one, else in one of its own; kept with the job."""
    api, asking = serve_api(), TraceContext.new()
    headers = {"traceparent": asking.header} if sent else {}
    _, job = await post(api, form_of(film), **headers)
    kept = JobFile.read(api.data.folder(job["id"]).job_file).trace
    assert kept is not None
    assert kept.trace_id == job["trace_id"]
    assert (kept.trace_id == asking.trace_id, kept.parent_id) == (sent, asking.span_id if sent else None)


async def test_a_bad_key(serve_api: ServeApi, film: bytes) -> None:
    """One that is too long is named."""
    status, problem = await post(serve_api(), form_of(film), Idempotency_Key="k" * 201)
    assert status == 422
    assert "Idempotency-Key" in problem["detail"]


async def test_a_full_queue(serve_api: ServeApi, film: bytes) -> None:
    """429 with the time to come back; a job that ends makes room; a known key is answered all the same."""
    api = serve_api(max_queue=1)
    _, first = await post(api, form_of(film), Idempotency_Key="first")
    status, problem = await post(api, form_of(film))
    assert (status, problem["code"], problem["retryable"]) == (429, "queue_full", True)
    assert (await post(api, form_of(film), Idempotency_Key="first"))[0] == 202
    api.store.ask_cancel(first["id"])
    assert (await post(api, form_of(film)))[0] == 202


async def test_a_video_beyond_the_limits(serve_api: ServeApi, film: bytes) -> None:
    """Refused before it is queued, with the key."""
    api = serve_api(limits__seconds=1.0)
    status, problem = await post(api, form_of(film))
    assert (status, problem["code"]) == (422, "video_limits")
    assert api.leftovers() == []
