"""The clients: what is waited for, what counts as a send, and how foreign errors come out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from pipeline_ver2 import wire
from pipeline_ver2.config import load_config
from pipeline_ver2.deadline import Deadline
from pipeline_ver2.errors import ConfigError, DeadlineShed, StageUnreachable
from pipeline_ver2.prompts import Question, SlotImage
from pipeline_ver2.stage_clients import Stage1Client, Stage2Client
from tests.pipeline_ver2.conftest import settings_for
from tests.stand_ins import LABELS, Stages, hang, refusal

CLIP = np.zeros((16, 32, 48, 3), np.uint8)
QUESTION = Question((SlotImage(b"jpeg", 0.3),), ((),), LABELS)


@asynccontextmanager
async def described(parameters: dict[str, Any], port: int) -> AsyncIterator[None]:
    """A server on this port that only has the model's metadata."""

    async def describe(_request: web.Request) -> web.Response:
        inputs = [{"name": "clips", "datatype": "UINT8", "shape": [-1, 16, 224, 224, 3]}]
        return web.json_response({"name": "yowov3", "platform": "x", "inputs": inputs, "parameters": parameters})

    app = web.Application()
    app.add_routes([web.get("/v2/models/yowov3", describe)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield
    finally:
        await runner.cleanup()


def stage1_client(stages: Stages, *, retry_for_s: float = 0, **overrides: Any) -> Stage1Client:  # noqa: ANN401
    """A client of the scripted Stage 1."""
    return Stage1Client(settings_for(stages, **overrides).stage1, retry_for_s=retry_for_s)


async def test_the_detector_describes_itself(stages: Stages) -> None:
    """Labels, clip length and image size are read from the model's metadata."""
    async with stage1_client(stages) as client:
        told = await client.describe()

    assert (told.labels, told.clip_length, told.image_size, told.engine) == (LABELS, 16, (32, 48), "stand-in")


async def test_one_result_comes_back_for_each_clip(stages: Stages) -> None:
    """Three clips, three findings; the bodies reach the server as they are."""
    async with stage1_client(stages) as client:
        found = await client.detect([CLIP, CLIP + 1, CLIP + 2], key="job/batch-0")

    assert len(found.clips) == 3
    assert found.times.total_s > 0
    assert [int(clip[0, 0, 0, 0]) for clip in stages.stage1.bodies[0]] == [0, 1, 2]


async def test_a_stage_that_never_comes_is_named(free_port: int) -> None:
    """After retry_for_s the error says which stage and where."""
    config = load_config(None, {"stage1.url": f"http://127.0.0.1:{free_port}"}, environ={})
    async with Stage1Client(config.stage1, retry_for_s=0.2) as client:
        with pytest.raises(StageUnreachable, match=f"stage1 at http://127.0.0.1:{free_port} cannot be reached"):
            await client.describe()


@pytest.mark.fault("B7")
async def test_start_order_does_not_matter(free_port: int) -> None:
    """A stage that is started after its client is reached as soon as it listens."""
    config = load_config(None, {"stage1.url": f"http://127.0.0.1:{free_port}"}, environ={})
    async with Stage1Client(config.stage1, retry_for_s=20) as client:
        told = asyncio.create_task(client.describe())
        async with described({"labels": list(LABELS)}, free_port):
            assert (await told).labels == LABELS


async def test_a_cancelled_request_is_gone_at_the_server(stages: Stages) -> None:
    """Cancelling a client closes its connection, so that the server sees it leave."""
    arrived = asyncio.Event()

    async def arrive_and_hang(request: web.Request, key: str, time: int) -> None:
        arrived.set()
        await hang(request, key, time)

    stages.stage1.rule = arrive_and_hang
    async with stage1_client(stages) as client:
        task = asyncio.create_task(client.detect([CLIP], key="job/batch-0"))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stages.stage1.idle.wait()


async def test_an_answer_carries_its_attempts_and_the_model_asked_for(stages: Stages) -> None:
    """A slot is asked of the first listed model and answered in one send."""
    settings = settings_for(stages)
    async with Stage2Client(settings.stage2, settings.pipeline) as client:
        told = await client.describe()
        asked, times = await client.evaluate(QUESTION, model=told.name, key="job/slot-0")

    assert told.name == "stand-in-vlm"
    assert asked.attempts == 1
    assert asked.answer is not None
    assert times is not None
    assert stages.stage2.bodies[0]["model"] == "stand-in-vlm"


async def test_both_stages_are_told_whose_work_it_is(stages: Stages) -> None:
    """The job is the client between whom and others the stages are fair."""
    settings = settings_for(stages)
    async with stage1_client(stages) as detector, Stage2Client(settings.stage2, settings.pipeline) as answerer:
        told = await answerer.describe()
        await detector.detect([CLIP], key="job-7/batch-0")
        await answerer.evaluate(QUESTION, model=told.name, key="job-7/slot-0")

    assert stages.stage1.clients == {"job-7"}
    assert stages.stage2.clients == {"job-7"}


async def test_labels_come_from_a_file_where_the_server_names_none(free_port: int, tmp_path: Path) -> None:
    """A server without labels in its metadata needs stage1.labels_path; the message names the key."""
    url = {"stage1.url": f"http://127.0.0.1:{free_port}"}
    (tmp_path / "labels.txt").write_text("sit\nstand up\n")
    async with described({}, free_port):
        async with Stage1Client(load_config(None, url, environ={}).stage1, retry_for_s=0) as client:
            with pytest.raises(ConfigError, match=r"stage1\.labels_path"):
                await client.describe()
        named = load_config(None, {**url, "stage1.labels_path": str(tmp_path / "labels.txt")}, environ={})
        async with Stage1Client(named.stage1, retry_for_s=0) as client:
            assert (await client.describe()).labels == ("sit", "stand up")


async def test_a_deadline_travels_with_each_request(stages: Stages) -> None:
    """To both stages, as what is left when it is sent: less after a wait."""
    told: dict[str, list[int]] = {"stage1": [], "stage2": []}

    def noting(name: str) -> Any:  # noqa: ANN401 - a rule
        async def note(request: web.Request, _key: str, time: int) -> web.Response | None:
            told[name].append(int(request.headers[wire.DEADLINE_HEADER]))
            return refusal(503, "stage_unreachable") if time == 1 else None

        return note

    stages.stage1.rule, stages.stage2.rule = noting("stage1"), noting("stage2")
    settings = settings_for(stages)
    async with (
        stage1_client(stages, retry_for_s=10) as first,
        Stage2Client(settings.stage2, settings.pipeline) as second,
    ):
        deadline = Deadline.within(10)
        await first.detect([CLIP], key="job/batch-0", deadline=deadline)
        asked, _ = await second.evaluate(QUESTION, model="m", key="job/slot-0", deadline=deadline)
    assert asked.answer is not None
    for left in told.values():
        assert len(left) == 2
        assert 10_000 >= left[0] > left[1] > 0


async def test_a_stage_that_is_away_is_waited_for_up_to_the_deadline(stages: Stages) -> None:
    """However long it would be waited for otherwise."""

    async def away(_request: web.Request, _key: str, _time: int) -> web.Response:
        return refusal(503, "stage_unreachable")

    stages.stage2.rule = away
    settings = settings_for(stages, pipeline__retry_for_s=60)
    async with Stage2Client(settings.stage2, settings.pipeline) as client, asyncio.timeout(30):
        with pytest.raises((StageUnreachable, DeadlineShed)):
            await client.evaluate(QUESTION, model="m", key="job/slot-0", deadline=Deadline.within(0.3))
