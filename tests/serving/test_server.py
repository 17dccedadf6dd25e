"""A job server in one process: what is taken, what is left, what goes on."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import aiohttp
import pytest

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.errors import ConfigError, StageError
from serving.jobs import DataDir
from serving.server import engine, job_server, reserved, until_broken
from serving.store import JobStore
from tests.serving.conftest import enter
from tests.stand_ins import Stages, stand_ins

PATIENCE_S = 60


def settings(data: DataDir, stages: Stages | None = None) -> Config:
    """A configuration for a data folder and scripted stages."""
    places = {"stage1.port": 9, "stage2.port": 9} if stages is None else stages.overrides()
    return load_config(None, {"paths.data_dir": str(data.path), "serving.port": 0, **places}, environ={})


async def ended(store: JobStore, job_id: str) -> str:
    """The state in which a job ends."""
    async with asyncio.timeout(PATIENCE_S):
        while not store.get(job_id).has_ended:  # noqa: ASYNC110 - another thread runs it
            await asyncio.sleep(0.05)
    return store.get(job_id).state


@pytest.mark.slow
@pytest.mark.fault("O5")
async def test_jobs_that_were_entered_are_run(data: DataDir, store: JobStore, clip: Path) -> None:
    """Also if the process that entered one ended before it had queued it, and what an upload left is swept."""
    (data.uploads / "dead.part").touch()
    enter(data, store, "a", clip, annotate=False)
    async with stand_ins() as stages, engine(settings(data, stages)):
        assert not os.listdir(data.uploads)  # noqa: PTH208 - not a blocking call worth a thread in a test
        assert await ended(store, "a") == "succeeded"


@pytest.mark.slow
async def test_a_server_is_there_and_goes(data: DataDir) -> None:
    """It answers as soon as the block begins, and its followers are let go when it ends."""
    config = settings(data)
    with reserved(config) as (listener, url):
        async with aiohttp.ClientSession() as session:
            async with job_server(config, listener) as serving:
                async with session.get(f"{url}/livez") as reply:
                    assert reply.status == 200
                async with session.post(f"{url}/jobs", data="none") as reply:
                    assert reply.status == 422
            assert serving.done()
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"{url}/livez")


def test_an_address_that_may_not_be_used(data: DataDir) -> None:
    """Taken, or open to others without a token."""
    config = settings(data)
    with reserved(config) as (_, url):
        port = int(url.rpartition(":")[2])
        taken = config.model_copy(update={"serving": config.serving.model_copy(update={"port": port})})
        with pytest.raises(ConfigError, match=r"serving\.port: .* already in use"), reserved(taken):
            pass
    exposed = config.model_copy(update={"serving": config.serving.model_copy(update={"host": "0.0.0.0"})})
    with pytest.raises(ConfigError, match=r"serving\.host"), reserved(exposed):
        pass


async def test_an_api_that_breaks_is_told() -> None:
    """Whoever keeps it up learns that it has stopped."""

    async def stop() -> None:
        await asyncio.sleep(0)

    with pytest.raises(StageError, match="has stopped"):
        await until_broken(asyncio.create_task(stop()))


@pytest.mark.fault("O7")
def test_folders_without_a_job_are_swept(data: DataDir, store: JobStore, clip: Path) -> None:
    """What a process left that ended between making a folder and entering its job goes after an hour."""
    enter(data, store, "known", clip)
    for name in ("fresh", "old", "known"):
        data.folder(name).path.mkdir(exist_ok=True)
    long_ago = time.time() - 7200
    for name in ("old", "known"):
        os.utime(data.folder(name).path, (long_ago, long_ago))
    data.sweep(store.exists)
    assert sorted(path.name for path in data.jobs.iterdir()) == ["fresh", "known"]
