"""A job server in this process: the API, the queue, and what runs the jobs; or the latter two alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import uvicorn
from prometheus_client import CollectorRegistry
from sqlalchemy.exc import SQLAlchemyError

from pipeline_ver2.config import Config
from pipeline_ver2.errors import DatabaseAway, StageError
from pipeline_ver2.telemetry import check_telemetry
from serving.app import JobApi
from serving.durability import DurableQueue
from serving.end_news import EndNews
from serving.intake import Intake
from serving.job_metrics import JobMetrics
from serving.jobs import DataDir
from serving.retention import enforce
from serving.security import check_exposure
from serving.store import JobStore
from serving.uploads import sweep
from serving.worker import Worker
from serving.workers.process import KEEP_ALIVE_S, listen

log = logging.getLogger(__name__)

STOP_JOBS_S = 8.0
DRAIN_S = 5
RETENTION_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Engine:
    """The queue at work, and what the API needs of it."""

    store: JobStore
    data: DataDir
    queue: DurableQueue
    metrics: JobMetrics


@asynccontextmanager
async def engine(config: Config, adopted: Sequence[str] = ()) -> AsyncIterator[Engine]:
    """Run jobs of the queue in this process until the block ends; those that run then go on at the next start.

    Args:
        config: The configuration.
        adopted: Names of dead executors elsewhere whose jobs are taken over.

    Raises:
        ConfigError: The database cannot be used, or what sends traces is not installed.
        ResultsError: The data folder cannot be used.
    """
    await asyncio.to_thread(check_telemetry, config.telemetry)
    data = DataDir(config.paths.data_dir)
    await asyncio.to_thread(data.prepare)
    with data.executor() as name, _store(config, data) as store:
        metrics = JobMetrics(CollectorRegistry(), store, data.path)
        worker = Worker(config, store, data, metrics)
        queue = DurableQueue(
            config.serving.database_url or data.database_url,
            executor=name,
            jobs_at_once=config.serving.jobs_at_once,
            work=worker.work,
        )
        await asyncio.to_thread(_open, queue, store, data, adopted)
        log.info("jobs run here as executor %s, %d at a time", name, config.serving.jobs_at_once)
        beside = [asyncio.create_task(_clean(config, store, data, queue), name="retention")]
        if config.serving.webhook is not None:
            news = EndNews(config.serving.webhook, store, metrics)
            beside.append(asyncio.create_task(news.run(), name="webhook of ended jobs"))
        try:
            yield Engine(store, data, queue, metrics)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await asyncio.to_thread(_close, queue, worker)


@asynccontextmanager
async def job_server(config: Config, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Serve the API and run jobs until the block ends; gives the task that serves, which ends by itself only if broken.

    Args:
        config: The configuration.
        listener: Where clients come, listening.
    """
    async with engine(config) as running:
        intake = Intake(config, running.store, running.data, running.queue, running.metrics)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its life's story; ours says it in a line
        api = JobApi(config, running.store, running.data, intake, running.metrics)
        server = _Server(
            uvicorn.Config(
                api.build(),
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=DRAIN_S,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="job API")
        try:
            yield serving
        finally:
            api.stopping.set()
            server.should_exit = True
            try:
                await asyncio.wait([serving])
            finally:
                serving.cancel()


@contextmanager
def reserved(config: Config) -> Iterator[tuple[socket.socket, str]]:
    """The address of the API, taken before anything slow begins; gives the listener and its URL.

    Raises:
        ConfigError: It is taken, or may not be used without a token.
    """
    check_exposure(config.serving)
    with listen("serving", config.serving.host, config.serving.port) as listener:
        host, port = listener.getsockname()[:2]
        yield listener, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def until_broken(serving: asyncio.Task[None]) -> None:
    """Wait until the API has stopped without being told to.

    Raises:
        StageError: It has.
    """
    await asyncio.wait([serving])
    raise StageError("the job API has stopped") from serving.exception()


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


@contextmanager
def _store(config: Config, data: DataDir) -> Iterator[JobStore]:
    url = config.serving.database_url or data.database_url
    store = JobStore(url, has_news=config.serving.webhook is not None)
    try:
        yield store
    finally:
        store.close()


def _open(queue: DurableQueue, store: JobStore, data: DataDir, adopted: Sequence[str]) -> None:
    sweep(data.uploads)
    data.sweep(store.exists)
    queue.open(adopted)
    if foreign := queue.foreign():
        log.warning("%d job(s) wait for a worker of the version that began them: %s", len(foreign), ", ".join(foreign))
    for job_id in store.open_ids():  # a process may have ended between entering a job and queueing it
        queue.put(job_id)


def _close(queue: DurableQueue, worker: Worker) -> None:
    worker.stop(STOP_JOBS_S)
    queue.close()


async def _clean(config: Config, store: JobStore, data: DataDir, queue: DurableQueue) -> None:
    while True:
        try:
            for job_id in await asyncio.to_thread(enforce, store, data, config.serving.retention):
                await asyncio.to_thread(queue.forget, job_id)
        except (OSError, DatabaseAway, SQLAlchemyError) as error:
            log.warning("ended jobs could not be deleted, the next try is in %g s: %s", RETENTION_EVERY_S, error)
        await asyncio.sleep(RETENTION_EVERY_S)
