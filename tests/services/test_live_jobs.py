"""Live sources as jobs of a real `zroact up`: a camera that asks for a password, a cancel, and kill -9."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline_ver2.results import Results
from tests.live_camera import Camera, served, transport_stream
from tests.services.job_server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PASSWORD = "geheim"  # noqa: S105 - of no camera


@pytest.fixture
async def camera() -> AsyncIterator[Camera]:
    """A camera that gives two seconds of pictures, again and again."""
    async with served(Camera([transport_stream(60)])) as streaming:
        yield streaming


@pytest.fixture
def server(tmp_path: Path, three_free_ports: tuple[int, int, int], camera: Camera) -> Server:
    """A folder with a configuration that allows the camera and nothing else."""
    return Server(
        tmp_path,
        three_free_ports,
        serving={"allowed_hosts": [camera.url.split("/")[2]], "downloads": {"private": True}},
        live={"reconnect": {"first_wait_s": 0.05}, "deadline_s": 60},
        pipeline={"keyframe_interval": 3},
    )


async def ask(server: Server, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Status and text of a GET, or of a POST with a JSON body."""
    method = "GET" if body is None else "POST"
    async with aiohttp.ClientSession() as session, session.request(method, server.url + path, json=body) as reply:
        return reply.status, await reply.text()


async def follow(server: Server, address: str, **options: Any) -> str:  # noqa: ANN401 - values of any option
    """Post a live source with a password; the id of its job."""
    with_password = address.replace("://", f"://user:{PASSWORD}@")
    status, text = await ask(server, "/jobs", {"source": with_password, "options": {"live": True, **options}})
    assert status == 202, text
    assert PASSWORD not in text
    job = json.loads(text)
    assert job["name"] == address
    return str(job["id"])


def shown(folder: Path) -> bytes:
    """Everything in a folder that is written for others than the job itself."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "job.json")


async def until_answered(server: Server, job_id: str) -> int:
    """Follow a job until it has answers and the camera was away; the last event's id."""
    kinds, last = Counter[str](), 0
    async for kind, data, number in server.events(job_id):
        kinds[kind] += 1
        last = max(last, number)
        assert PASSWORD not in json.dumps(data)
        if kinds["slot"] >= 3 and kinds["gap"]:
            break
    assert kinds["run"] == 1
    return last


async def check_while_it_runs(server: Server, job_id: str) -> None:
    """Its records are there already, its summary is not yet, pictures are never."""
    assert (await server.get(f"/jobs/{job_id}"))["available"] == ["results.jsonl"]
    for path, status, code in (
        ("video", 404, "nothing_there"),
        ("frame?time_s=1", 404, "nothing_there"),
        ("results", 409, "job_not_ended"),
    ):
        told = await ask(server, f"/jobs/{job_id}/{path}")
        assert (told[0], json.loads(told[1])["code"]) == (status, code)
    _, text = await ask(server, f"/jobs/{job_id}/results.jsonl")
    assert text.count('"type":"slot"') >= 3


async def until_it_goes_on(server: Server, job_id: str, after: int) -> str:
    """Follow a job from an event on until another run of it has two answers; that run."""
    run, slots = "", 0
    async for kind, data, _ in server.events(job_id, after):
        run = data["run"] if kind == "run" else run
        slots += kind == "slot" and run != ""
        if slots == 2:
            break
    return run


async def cancel(server: Server, job_id: str) -> Results:
    """Cancel a job, which takes seconds at most; its summary."""
    begun = time.monotonic()
    job = await server.get(f"/jobs/{job_id}", "DELETE")
    assert job["state"] == "cancelled" or await server.until(job_id, "end", "cancelled")
    assert time.monotonic() - begun < 10
    return Results.model_validate(await server.get(f"/jobs/{job_id}/results"))


def slots_of_runs(journal: str) -> Counter[tuple[str, int]]:
    """How many records each slot of each run has."""
    run, seen = "", Counter[tuple[str, int]]()
    for record in map(json.loads, journal.splitlines()):
        run = record.get("run", run)
        if record["type"] == "slot":
            seen[run, record["index"]] += 1
    return seen


async def test_a_camera_is_followed_through_a_kill_until_a_cancel(
    server: Server, camera: Camera, tmp_path: Path
) -> None:
    """Answers come as events; after kill -9 it connects again, in a run of its own; nobody sees its password."""
    with server.run() as process:
        elsewhere = {"source": "http://camera.example/", "options": {"live": True}}
        assert (await ask(server, "/jobs", elsewhere))[0] == 403
        job_id = await follow(server, camera.url, policy="DROP_LATEST", duration_s=600)
        last = await until_answered(server, job_id)
        await check_while_it_runs(server, job_id)
        process.kill()
        process.wait()
    connections = camera.connections
    with server.run():
        run = await until_it_goes_on(server, job_id, last)
        assert (await server.get(f"/jobs/{job_id}"))["attempts"] == 2
        results = await cancel(server, job_id)
        _, journal = await ask(server, f"/jobs/{job_id}/results.jsonl")
    assert camera.connections > connections
    assert (results.state, results.source) == ("cancelled", camera.url)
    assert results.counts.slots >= 2
    assert results.timing.latency is not None
    seen = slots_of_runs(journal)
    assert set(seen.values()) == {1}
    assert len({each for each, _ in seen}) == 2
    assert sum(number for (each, _), number in seen.items() if each == run) == results.counts.slots
    assert (tmp_path / "data/jobs" / job_id / "results-000001.jsonl").exists()
    assert all(headers["Authorization"].startswith("Basic ") for headers in camera.headers)
    assert PASSWORD.encode() not in shown(tmp_path)
