"""The orchestrator on live sources: deadlines, policies, gaps, and results that stay small."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pipeline_ver2 import wire
from pipeline_ver2.job import Job
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.report import summary_table
from pipeline_ver2.results import JOURNAL_NAME, Results, read_results
from tests.live_camera import Camera, served, transport_stream
from tests.pipeline_ver2.conftest import settings_for
from tests.pipeline_ver2.fake_stage import until
from tests.stand_ins import Stages, refusal

QUICK = {"live__reconnect__first_wait_s": 0.02, "live__read_timeout_s": 5.0, "pipeline__keyframe_interval": 3}


def live_job(address: str, out: Path, **options: Any) -> Job:  # noqa: ANN401 - fields of LiveSource
    """A run of a live source as stream "yard"."""
    source = LiveSource(address, **{"deadline_s": 5, "duration_s": 1.0, **options})
    return Job(Path(source.name), out, stream="yard", live=source)


async def run_camera(stages: Stages, out: Path, overrides: dict[str, Any] | None = None, **options: Any) -> Results:  # noqa: ANN401
    """Follow a camera that gives 40 frames at 100 a second, again and again."""
    async with served(Camera([transport_stream(40)], rate=100)) as camera:
        settings = settings_for(stages, **{**QUICK, **(overrides or {})})
        return await run_pipeline(live_job(camera.url, out, **options), settings)


def journal_of(out: Path) -> list[dict[str, Any]]:
    """The records of a journal."""
    return [json.loads(line) for line in (out / JOURNAL_NAME).read_text().splitlines()]


async def test_a_camera_is_followed(stages: Stages, tmp_path: Path) -> None:
    """Every slot is counted once, carries its deadline and its stream to Stage 2, and tells how late its answer was."""
    deadlines: list[int] = []

    async def note(request: web.Request, _key: str, _time: int) -> None:
        deadlines.append(int(request.headers[wire.DEADLINE_HEADER]))

    stages.stage2.rule = note
    results = await run_camera(stages, tmp_path)

    counts, latency = results.counts, results.timing.latency
    assert results.state == "succeeded"
    assert counts.slots == counts.ok == len(deadlines) >= 5
    assert all(0 < left_ms <= 5000 for left_ms in deadlines)
    assert stages.stage2.clients == stages.stage1.clients == {"yard"}
    assert latency is not None
    assert (latency.count, latency.p99_s < 5) == (counts.ok, True)
    assert all(slot.latency_s is not None and slot.arrived_at is not None for slot in results.slots)
    assert counts.gaps >= 1
    assert f"the source was away {counts.gaps} times" in results.warnings
    assert results.source.startswith("http://127.0.0.1:")
    assert read_results(tmp_path) == results
    assert "frame to answer" in str([column._cells for column in summary_table(results).columns])
    lines = Counter(record["type"] for record in journal_of(tmp_path))
    assert lines["slot"] == counts.slots
    assert lines["keyframe"] == counts.keyframes
    assert lines["gap"] >= counts.gaps


async def test_what_stage_2_sheds_is_shed(stages: Stages, tmp_path: Path) -> None:
    """Not failed, not asked again, counted by its reason; the others are answered."""

    async def shed(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return refusal(503, "shed_deadline") if int(key.rpartition("-")[2]) % 2 else None

    stages.stage2.rule = shed
    results = await run_camera(stages, tmp_path)

    counts = results.counts
    assert results.state == "partial"
    assert (counts.ok + counts.shed, counts.failed) == (counts.slots, 0)
    assert counts.shed == counts.slots // 2
    assert counts.lost["slots"] == {"shed_deadline": counts.shed}
    assert set(stages.stage2.seen.values()) == {1}


@pytest.mark.slow
async def test_what_is_too_late_is_not_sent(stages: Stages, tmp_path: Path) -> None:
    """Stage 1 took longer than there was time: Stage 2 never hears of it."""

    async def slow(_request: web.Request, _key: str, _time: int) -> None:
        await asyncio.sleep(0.5)

    stages.stage1.rule = slow
    results = await run_camera(stages, tmp_path, deadline_s=0.2)

    assert results.counts.shed == results.counts.slots > 0
    assert results.slots[0].reason is not None
    assert "before it was sent" in results.slots[0].reason
    assert (results.slots[0].attempts, stages.stage2.keys) == (0, [])


@pytest.mark.slow
async def test_a_stage_that_is_away_does_not_end_a_live_run(stages: Stages, tmp_path: Path) -> None:
    """Its slots fail when their time is over; when it is back, the next are answered."""
    away = True

    async def unready(_request: web.Request, _key: str, _time: int) -> web.Response | None:
        return refusal(503, "stage_unreachable") if away else None

    stages.stage2.rule = unready
    async with served(Camera([transport_stream(100)], rate=30)) as camera:
        settings = settings_for(stages, **QUICK)
        job = live_job(camera.url, tmp_path, deadline_s=0.3, duration_s=2.5)
        run = asyncio.create_task(run_pipeline(job, settings))
        await asyncio.sleep(1.5)
        away = False
        results = await run
    assert results.counts.ok > 0
    assert results.counts.lost["slots"].keys() <= {"stage_unreachable", "shed_deadline"}
    assert results.counts.ok + results.counts.failed + results.counts.shed == results.counts.slots


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["DROP_OLDEST", "DROP_LATEST"])
async def test_a_full_queue_drops_slots(stages: Stages, tmp_path: Path, policy: str) -> None:
    """Each has a record with the reason; a stage that hangs holds nobody else up."""
    go_on = asyncio.Event()

    async def hang(_request: web.Request, _key: str, _time: int) -> None:
        await go_on.wait()

    stages.stage2.rule = hang
    asyncio.get_running_loop().call_later(1.5, go_on.set)
    overrides = {"pipeline__queue_size": 1, "stage2__limit": 1, "pipeline__slot_frames": 1}
    results = await run_camera(stages, tmp_path, overrides, policy=policy)

    counts = results.counts
    assert counts.dropped >= 5
    assert counts.ok + counts.shed + counts.dropped == counts.slots
    assert counts.lost["slots"]["queue_full"] == counts.dropped
    slots = [record for record in journal_of(tmp_path) if record["type"] == "slot"]
    dropped, answered = ([slot["index"] for slot in slots if slot["state"] == state] for state in ("dropped", "ok"))
    assert (max(answered) > max(dropped)) == (policy == "DROP_OLDEST")


@pytest.mark.slow
async def test_results_stay_small(stages: Stages, tmp_path: Path) -> None:
    """Everything is counted and in the journal; results.json tells the last slots."""
    results = await run_camera(stages, tmp_path, {"live__recent": 2, "pipeline__slot_frames": 1})
    assert results.counts.slots > 10
    assert [slot.index for slot in results.slots] == [results.counts.slots - 2, results.counts.slots - 1]
    assert len(results.keyframes) <= 3


async def test_cancelled_it_keeps_what_there_is(stages: Stages, tmp_path: Path) -> None:
    """Within limits, however long the camera goes on."""
    async with served(Camera([transport_stream(300)], rate=100)) as camera:
        job = live_job(camera.url, tmp_path, duration_s=None)
        run = asyncio.create_task(run_pipeline(job, settings_for(stages, **QUICK)))
        await until(lambda: stages.stage2.keys)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, 10)
    results = read_results(tmp_path)
    assert results.state == "cancelled"
    assert results.counts.keyframes > 0


@pytest.mark.slow
async def test_a_run_that_goes_on_begins_anew(stages: Stages, tmp_path: Path) -> None:
    """With `resume` nothing is taken for done, no key of a request comes twice, and the old journal stays."""
    async with served(Camera([transport_stream(40)], rate=100)) as camera:
        settings = settings_for(stages, **QUICK)
        for _ in range(2):
            source = LiveSource(camera.url, deadline_s=5, duration_s=0.4)
            await run_pipeline(Job(Path("c"), tmp_path, resume=True, stream="yard", live=source), settings)
    assert len(set(stages.stage2.keys)) == len(stages.stage2.keys) > 1
    assert (tmp_path / "results-000001.jsonl").exists()
