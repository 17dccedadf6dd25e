"""kill -9 of anything at any moment of a job: it goes on, finds the same, and asks again only what was lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from pipeline_ver2.config import load_config
from pipeline_ver2.results import read_results
from pipeline_ver2.supervisor import Supervisor
from serving.jobs import DataDir
from serving.store import JobStore
from tests.job_processes import job_processes_of
from tests.openai_upstream import upstream
from tests.services.job_server import PATIENCE_S, Server
from tests.services.killing import CountedEngine, Site, Started, engine_settings, plan_of
from tests.serving.conftest import enter
from tests.stand_ins import Stages, answer, stand_ins

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RECORDS = 18
SERVICE_S = 0.2

SiteOf = Callable[[Path, tuple[int, int, int]], AbstractAsyncContextManager[Site]]


@asynccontextmanager
async def everything_up(folder: Path, ports: tuple[int, int, int]) -> AsyncIterator[Site]:
    """`zroact up`: the API, which runs the jobs, and both daemons under it."""
    engine = CountedEngine(SERVICE_S)
    async with upstream(engine.answer) as behind:
        server = Server(folder, ports, stage2=engine_settings(behind))
        api = Started(server, "up")
        try:
            await api.start()
            store = JobStore(DataDir(folder / "data").database_url)
            names = dict(zip(("stage1", "stage2", "api"), ports, strict=True))
            yield Site(server, store, engine, [api], names)
            store.close()
        finally:
            await api.stop()


@asynccontextmanager
async def one_worker(folder: Path, ports: tuple[int, int, int]) -> AsyncIterator[Site]:
    """A worker of the queue, and both daemons that others run."""
    engine = CountedEngine(SERVICE_S)
    async with upstream(engine.answer) as behind:
        server = Server(folder, ports, stage2=engine_settings(behind))
        worker = Started(server, "worker")
        data = DataDir(folder / "data")
        data.prepare()
        store = JobStore(data.database_url)
        async with Supervisor(load_config(folder / "config.json", environ={})):
            try:
                await worker.start()
                yield Site(server, store, engine, [worker], dict(zip(("stage1", "stage2"), ports[:2], strict=True)))
            finally:
                await worker.stop()
        store.close()


@pytest.mark.fault("O5")
@pytest.mark.parametrize(
    ("site_of", "victims", "jobs"),
    [
        (everything_up, ("job", "stage1", "stage2"), 1),
        pytest.param(everything_up, ("api", "job", "stage1", "stage2"), 3, marks=pytest.mark.soak),
        pytest.param(one_worker, ("worker", "job", "stage1", "stage2"), 2, marks=pytest.mark.soak),
    ],
)
async def test_jobs_outlive_kills_at_random_moments(
    tmp_path: Path,
    three_free_ports: tuple[int, int, int],
    clip: Path,
    site_of: SiteOf,
    victims: tuple[str, ...],
    jobs: int,
) -> None:
    """Whatever takes part in a job, once in every job: same answers, no send without a reason."""
    async with site_of(tmp_path, three_free_ports) as site:
        (expected,) = await site.undisturbed(await site.submit(clip))
        for seed in range(jobs):
            plan = plan_of(random.Random(seed), victims, RECORDS)
            said = f"seed {seed}: {plan}"
            (job_id,) = await site.submit(clip)
            await site.disturb({job_id: expected}, plan)
            assert await site.ended(job_id) == "succeeded", said
            site.check(job_id, expected, said)
            site.forget()


@dataclass(frozen=True)
class Scripted:
    """A job on scripted stages, one question at a time, and the process that runs it."""

    stages: Stages
    server: Server
    store: JobStore
    running: Started

    async def goes_on(self, attempts: int) -> None:
        """Started again the process ends the job; of slot 2, which was lost, it asks once more."""
        assert self.server.slots("a") == Counter(range(2))
        await self.running.start()
        async with asyncio.timeout(PATIENCE_S):
            while not self.store.get("a").has_ended:  # noqa: ASYNC110 - another process runs it
                await asyncio.sleep(0.05)
        assert (self.store.get("a").state, self.store.get("a").attempts) == ("succeeded", attempts)
        assert self.server.slots("a") == Counter(range(5))
        assert dict(self.stages.stage2.seen) == {"slot-0": 1, "slot-1": 1, "slot-2": 2, "slot-3": 1, "slot-4": 1}
        results = read_results(DataDir(self.server.folder / "data").folder("a").path)
        assert [slot.state for slot in results.slots] == ["ok"] * 5


@asynccontextmanager
async def scripted(folder: Path, ports: tuple[int, int, int], clip: Path, command: str) -> AsyncIterator[Scripted]:
    """A job that whoever is started will run."""
    async with stand_ins() as stages:
        first, second = {"url": stages.stage1.url}, {"url": stages.stage2.url}
        server = Server(folder, ports, stage1=first, stage2=second, pipeline={"stage2_window": 1})
        data = DataDir(folder / "data")
        data.prepare()
        store, running = JobStore(data.database_url), Started(server, command)
        enter(data, store, "a", clip, annotate=False)
        try:
            yield Scripted(stages, server, store, running)
        finally:
            await running.stop()
            store.close()


@pytest.mark.fault("O5")
@pytest.mark.parametrize("command", ["up", pytest.param("worker", marks=pytest.mark.soak)])
async def test_a_kill_between_an_answer_and_its_record(
    tmp_path: Path, three_free_ports: tuple[int, int, int], clip: Path, command: str
) -> None:
    """The process has the whole reply and is killed before it can do anything with it: that slot is sent once more."""
    async with scripted(tmp_path, three_free_ports, clip, command) as site:
        killed = asyncio.Event()

        async def kill_with_the_answer(request: web.Request, key: str, time: int) -> web.StreamResponse | None:
            if (key, time) != ("slot-2", 1):
                return None
            assert site.running.process is not None
            (job_process,) = job_processes_of(site.running.process.pid)
            await stopped(job_process)
            reply = answer()
            await reply.prepare(request)
            await reply.write_eof()
            assert request.transport is not None
            assert request.transport.get_write_buffer_size() == 0
            site.running.process.kill()
            os.kill(job_process, signal.SIGKILL)  # as it would itself, if it were not held
            killed.set()  # at once: this handler is cancelled when its client is gone
            return reply

        site.stages.stage2.rule = kill_with_the_answer
        await site.running.start()
        await asyncio.wait_for(killed.wait(), PATIENCE_S)
        await site.running.kill()
        await site.goes_on(attempts=2)


@pytest.mark.fault("O6")
async def test_a_worker_is_stopped_in_the_middle(
    tmp_path: Path, three_free_ports: tuple[int, int, int], clip: Path
) -> None:
    """SIGTERM: it ends in order, the job waits with all its attempts, and goes on when a worker comes."""
    async with scripted(tmp_path, three_free_ports, clip, "worker") as site:
        hanging = asyncio.Event()

        async def hang_at_two(_request: web.Request, key: str, time: int) -> None:
            if (key, time) == ("slot-2", 1):
                hanging.set()
                await asyncio.Event().wait()

        site.stages.stage2.rule = hang_at_two
        await site.running.start()
        await asyncio.wait_for(hanging.wait(), PATIENCE_S)
        assert site.running.process is not None
        site.running.process.terminate()
        assert await asyncio.to_thread(site.running.process.wait, PATIENCE_S) == 0
        assert (site.store.get("a").state, site.store.get("a").attempts) == ("queued", 0)
        await site.goes_on(attempts=1)


async def stopped(process: int) -> None:
    """SIGSTOP, and every thread of the process has stopped."""
    os.kill(process, signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE_S):
        while set(thread_states(process)) != {"T"}:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def thread_states(process: int) -> list[str]:
    """One letter for each thread; in /proc it follows the name, which ends with the last bracket."""
    stats = (each / "stat" for each in Path(f"/proc/{process}/task").iterdir())
    return [stat.read_text().rpartition(")")[2].split()[0] for stat in stats]
