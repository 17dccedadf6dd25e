"""Two workers that share a queue on PostgreSQL: kill -9 of a worker, of a daemon, of the database's server."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipeline_ver2.config import load_config
from pipeline_ver2.supervisor import Supervisor
from serving.jobs import DataDir, locked
from serving.store import JobStore
from tests.openai_upstream import upstream
from tests.services.job_server import Server
from tests.services.killing import CountedEngine, Site, Started, engine_settings, plan_of
from tests.services.postgres import Postgres, postgres
from tests.videos import numbered, steady

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RECORDS = 18
SERVICE_S = 0.2


@pytest.fixture
def database(three_free_ports: tuple[int, int, int]) -> Iterator[Postgres]:
    """A fresh PostgreSQL server, where the API would be if there were one here."""
    with postgres(three_free_ports[2]) as server:
        yield server


@asynccontextmanager
async def two_workers(folder: Path, ports: tuple[int, int, int], database: Postgres) -> AsyncIterator[Site]:
    """Two workers of one queue, and both daemons that others run."""
    engine = CountedEngine(SERVICE_S)
    async with upstream(engine.answer) as behind:
        serving = {"database_url": database.url}
        server = Server(folder, ports, stage2=engine_settings(behind), serving=serving)
        data = DataDir(folder / "data")
        data.prepare()
        store, workers = JobStore(database.url), [Started(server, "worker") for _ in range(2)]
        async with Supervisor(load_config(folder / "config.json", environ={})):
            try:
                stages = dict(zip(("stage1", "stage2"), ports[:2], strict=True))
                yield Site(server, store, engine, workers, stages, database)
            finally:
                for each in workers:
                    await each.stop()
        store.close()


@pytest.mark.fault("O5")
@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.soak)])
async def test_shared_jobs_outlive_kills_at_random_moments(
    tmp_path: Path, three_free_ports: tuple[int, int, int], clip: Path, database: Postgres, rounds: int
) -> None:
    """A worker, each daemon and the database, once in every round of two jobs: same answers, no needless send."""
    clips = (clip, numbered("other.mp4", steady(30, 5)))
    async with two_workers(tmp_path, three_free_ports, database) as site:
        expected = await site.undisturbed(await site.submit(*clips))
        for seed in range(rounds):
            plan = plan_of(random.Random(seed), ("worker", "job", "stage1", "stage2", "postgres"), RECORDS)
            said = f"seed {seed}: {plan}"
            jobs = dict(zip(await site.submit(*clips), expected, strict=True))
            await site.disturb(jobs, plan)
            for job_id, each in jobs.items():
                assert await site.ended(job_id) == "succeeded", said
                site.check(job_id, each, said)
            site.forget()


@pytest.mark.soak
@pytest.mark.fault("O5")
async def test_the_jobs_of_a_dead_worker_are_adopted(
    tmp_path: Path, three_free_ports: tuple[int, int, int], clip: Path, database: Postgres
) -> None:
    """A worker that never comes back under its name: another one that is told so goes on with its job."""
    async with two_workers(tmp_path, three_free_ports, database) as site:
        first, second = site.processes
        with locked(site.data.path / "executors" / f"{socket.gethostname()}-0.lock"):
            site.processes = [first]  # it has to take the next name
            (calm,) = await site.submit(clip)
            (expected,) = await site.undisturbed([calm])
            (job_id,) = await site.submit(clip)
            await site.until_records(job_id, RECORDS // 2)
            await first.kill()
            recorded = site.recorded_slots(job_id)
        await second.start("--adopt", f"{socket.gethostname()}-1")
        assert await site.ended(job_id) == "succeeded"
        site.hits.update(key for slot, key in expected.keys.items() if slot not in recorded)
        site.check(job_id, expected, "adopted")
        assert site.store.get(job_id).attempts == 2
