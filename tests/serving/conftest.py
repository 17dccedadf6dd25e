"""The job API on port 0 with a queue that holds its jobs, and what tests of jobs need."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pipeline_ver2.config import Config, load_config
from serving.app import JobApi
from serving.intake import Intake
from serving.job_metrics import JobMetrics
from serving.jobs import DataDir, JobFile, JobOptions
from serving.store import JobStore
from tests.servers import served


@dataclass
class HeldQueue:
    """A queue that keeps its jobs."""

    ids: list[str] = field(default_factory=list)

    def put(self, job_id: str) -> None:
        """Keep a job."""
        self.ids.append(job_id)


@dataclass
class Api:
    """A served API, and what it works with."""

    url: str
    config: Config
    store: JobStore
    data: DataDir
    queue: HeldQueue

    def leftovers(self) -> list[str]:
        """Files of uploads and jobs on the disk, relative to the data folder."""
        folders = (self.data.uploads, self.data.jobs)
        return [str(path.relative_to(self.data.path)) for folder in folders for path in folder.rglob("*")]


ServeApi = Callable[..., Api]


@pytest.fixture
def film(clip: Path) -> bytes:
    """The content of a small video."""
    return clip.read_bytes()


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    """A data folder."""
    folder = DataDir(tmp_path / "data")
    folder.prepare()
    return folder


@pytest.fixture
def store(data: DataDir) -> Iterator[JobStore]:
    """An empty table of jobs."""
    table = JobStore(data.database_url)
    yield table
    table.close()


@pytest.fixture
def metrics(store: JobStore, data: DataDir) -> JobMetrics:
    """Metrics of their own."""
    return JobMetrics(CollectorRegistry(), store, data.path)


@pytest.fixture
def serve_api(tmp_path: Path, data: DataDir, store: JobStore, metrics: JobMetrics) -> Iterator[ServeApi]:
    """Serves the API with settings of `serving`; unless told where, stages are where nobody listens."""
    servers = ExitStack()

    def serve(stages: Mapping[str, Any] | None = None, **settings: Any) -> Api:  # noqa: ANN401 - values of any key
        overrides = {f"serving.{key.replace('__', '.')}": value for key, value in settings.items()}
        places = {"paths.media_roots": [str(tmp_path / "media")], "paths.data_dir": str(data.path)}
        away = {"stage1.port": 9, "stage2.port": 9}
        config = load_config(None, {**places, **(stages or away), **overrides}, environ={})
        queue = HeldQueue()
        api = JobApi(config, store, data, Intake(config, store, data, queue, metrics), metrics)
        url = servers.enter_context(served(api.build(), until_ready=False))
        return Api(url, config, store, data, queue)

    with servers:
        yield serve


def enter(data: DataDir, store: JobStore, job_id: str, source: Path, **options: Any) -> JobFile:  # noqa: ANN401
    """A queued job of this id, with its folder."""
    chosen = JobOptions(**options)
    job = JobFile(id=job_id, source=source, options=chosen)
    folder = data.folder(job_id)
    folder.path.mkdir(parents=True)
    folder.job_file.write_text(job.model_dump_json())
    store.insert(job_id, source.name, chosen, None)
    return job


@contextmanager
def write_locked(data: DataDir) -> Iterator[None]:
    """Hold the only right to write into the database of a data folder."""
    with closing(sqlite3.connect(data.database_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
