"""`zroact up` as people run it: real daemons with emulated engines, the queue, the API, and kills."""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from pipeline_ver2.results import Results
from serving.jobs import DataDir
from serving.store import JobStore
from tests.services.job_server import PATIENCE_S, ZROACT, Server
from tests.serving.conftest import enter
from tests.stand_ins import stand_ins
from tests.videos import lavfi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def server(tmp_path: Path, three_free_ports: tuple[int, int, int]) -> Server:
    """A folder with a configuration."""
    return Server(tmp_path, three_free_ports)


async def test_a_video_is_sent_followed_and_answered(server: Server, clip: Path) -> None:
    """Each answer comes as an event while the job runs; then results, timelines and video are there."""
    with server.run():
        job_id = await server.post(clip, annotate=True)
        events = [(kind, data) async for kind, data, _ in server.events(job_id)]
        kinds = Counter(kind for kind, _ in events)
        assert (kinds["keyframe"], kinds["slot"], kinds["end"]) == (13, 5, 1)
        assert [data["state"] for kind, data in events if kind == "state"][-1] == "succeeded"
        first_slot = next(place for place, (kind, _) in enumerate(events) if kind == "slot")
        running = [place for place, (kind, data) in enumerate(events) if kind == "state" and data["state"] == "running"]
        assert running
        assert running[0] < first_slot < len(events) - 1
        assert events[-1][0] == "end"
        results = Results.model_validate(await server.get(f"/jobs/{job_id}/results"))
        assert (results.state, results.counts.slots) == ("succeeded", 5)
        assert await server.get(f"/jobs/{job_id}/timeline")
        assert (await server.get("/readyz"))["status"] == "ready"
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/jobs/{job_id}/video") as reply:
            assert b"ftyp" in (await reply.read())[:16]


@pytest.mark.fault("O9")
async def test_cancelling_a_running_job(tmp_path: Path, three_free_ports: tuple[int, int, int], clip: Path) -> None:
    """The reply says cancelled; what was found is kept, the upload is not; the next job runs at once."""
    server = Server(tmp_path, three_free_ports, stage2_s=600)
    with server.run():
        job_id, waiting = await server.post(clip), await server.post(clip)
        await server.until(job_id, "keyframe")
        begun = time.monotonic()
        job = await server.get(f"/jobs/{job_id}", "DELETE")
        assert job["state"] == "cancelled" or await server.until(job_id, "end", "cancelled")
        assert time.monotonic() - begun < 10
        assert (await server.get(f"/jobs/{job_id}/results"))["state"] == "cancelled"
        assert not (tmp_path / "data/jobs" / job_id / "source").exists()
        await server.until(waiting, "state", "running")
        assert (await server.get(f"/jobs/{waiting}", "DELETE"))["attempts"] == 1


@pytest.mark.fault("O5")
async def test_a_job_outlives_the_server(server: Server, clip: Path) -> None:
    """kill -9 in the middle: after a restart the job goes on, one record a slot, and so do the events."""
    with server.run() as process:
        job_id, queued = await server.post(clip), await server.post(clip)
        last = 0
        async for kind, _, number in server.events(job_id):
            last = max(last, number)
            if kind == "slot":
                process.kill()
                break
        process.wait()
    before = sum(server.slots(job_id).values())
    with server.run():
        async with asyncio.timeout(PATIENCE_S):
            rest = [(kind, data) async for kind, data, _ in server.events(job_id, last)]
        assert rest[-1][0] == "end"
        assert (rest[-1][1]["state"], rest[-1][1]["attempts"]) == ("succeeded", 2)
        assert len([kind for kind, _ in rest if kind == "slot"]) <= 5 - min(1, before)
        await server.until(queued, "end", "succeeded")
    assert server.slots(job_id) == Counter(range(5))
    assert server.slots(queued) == Counter(range(5))


@pytest.mark.fault("O6")
async def test_a_job_goes_on_after_an_orderly_stop(server: Server, clip: Path) -> None:
    """SIGTERM in the middle ends the server in order, and is no attempt lost."""
    with server.run() as process:
        job_id = await server.post(clip)
        await server.until(job_id, "slot")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    with server.run():
        job = await server.until(job_id, "end", "succeeded")
        assert job["attempts"] == 1
    assert server.slots(job_id) == Counter(range(5))


async def test_a_worker_runs_jobs_without_the_api(server: Server, clip: Path) -> None:
    """With stages that others run, from the queue that others fill; SIGTERM ends it in order."""
    data = DataDir(server.folder / "data")
    data.prepare()
    store = JobStore(data.database_url)
    enter(data, store, "a", clip, annotate=False)
    async with stand_ins() as stages:
        content = {"stage1": {"url": stages.stage1.url}, "stage2": {"url": stages.stage2.url}}
        (server.folder / "config.json").write_text(json.dumps(content))
        with server.run("worker") as process:
            async with asyncio.timeout(PATIENCE_S):
                while not store.get("a").has_ended:  # noqa: ASYNC110 - another process runs it
                    await asyncio.sleep(0.1)
            process.terminate()
            assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    assert store.get("a").state == "succeeded"
    store.close()


async def test_two_servers_in_one_folder(server: Server, clip: Path) -> None:
    """The second is refused and says which address is taken; with an address of its own it shares the queue."""
    async with stand_ins() as stages:
        own = {"stage1": {"url": stages.stage1.url}, "stage2": {"url": stages.stage2.url}}
        config = server.folder / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **own}))
        with ExitStack() as servers:
            await asyncio.to_thread(servers.enter_context, server.run())
            command = (ZROACT, "up")
            refused = await asyncio.create_subprocess_exec(*command, cwd=server.folder, stderr=asyncio.subprocess.PIPE)
            _, said = await asyncio.wait_for(refused.communicate(), PATIENCE_S)
            assert refused.returncode == 2
            assert b"serving.port" in said
            assert b"already in use" in said
            config.write_text(json.dumps({**json.loads(config.read_text()), "serving": {"port": 0}}))
            await asyncio.to_thread(servers.enter_context, server.run())
            for job_id in [await server.post(clip) for _ in range(3)]:
                await server.until(job_id, "end", "succeeded")
                assert server.slots(job_id) == Counter(range(5))


@pytest.mark.fault("O10")
async def test_the_api_answers_while_large_frames_are_decoded(server: Server) -> None:
    """The status of a job comes while its 4K video is decoded, many times over."""
    large = lavfi("large.mp4", "color=red:s=3840x2160:r=10:d=2", "-preset", "ultrafast", "-pix_fmt", "yuv420p")
    with server.run():
        job_id = await server.post(large)
        await server.until(job_id, "state", "running")
        waits: list[float] = []
        async with asyncio.timeout(PATIENCE_S):
            while True:
                begun = time.monotonic()
                job = await server.get(f"/jobs/{job_id}")
                waits.append(time.monotonic() - begun)
                if job["state"] != "running":
                    break
        assert job["state"] == "succeeded"
        assert len(waits) > 10
        assert statistics.median(waits) < 5
