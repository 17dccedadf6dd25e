"""A job: what was asked for, where its files are, what became of it."""

from __future__ import annotations

import fcntl
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline_ver2.config import Config
from pipeline_ver2.config_live import Policy
from pipeline_ver2.errors import FolderInUse, ResultsError
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.live_options import LiveOptions
from pipeline_ver2.trace_context import TraceContext

JobState = Literal["queued", "running", "succeeded", "partial", "failed", "cancelled"]
ENDED: frozenset[JobState] = frozenset({"succeeded", "partial", "failed", "cancelled"})

_ID_BYTES = 8
_REQUEST_S = 3600.0
_LONGEST_S = 1e9


class JobOptions(BaseModel):
    """What a client may choose. `gate` stands over `pipeline.gate`; `annotate` asks for an annotated video.

    `live` follows a live source, of which there is no video. What it alone may have is as in `zroact run`: seconds from
    a frame to its answer (0: any), what gives way if frames come too fast, seconds after which it ends.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gate: Literal["all", "detections"] | None = None
    annotate: bool = True
    live: bool = False
    deadline_s: Annotated[float, Field(ge=0, le=_LONGEST_S)] | None = None
    policy: Policy | None = None
    duration_s: Annotated[float, Field(ge=0.1, le=_LONGEST_S)] | None = None

    @model_validator(mode="after")
    def _must_be_live(self) -> JobOptions:
        if not self.live and (self.deadline_s, self.policy, self.duration_s) != (None, None, None):
            raise ValueError('deadline_s, policy and duration_s are for live sources, with "live": true')
        return self

    def apply(self, config: Config) -> Config:
        """The configuration with these options."""
        if self.gate is None:
            return config
        return config.model_copy(update={"pipeline": config.pipeline.model_copy(update={"gate": self.gate})})


class JobRecord(BaseModel):
    """A job as clients see it. `name` is what the client called its video; it names nothing here.

    `trace_id` is that of the request's `traceparent`, or one of the job's own.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    state: JobState
    error: str | None = None
    options: JobOptions
    attempts: int
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    trace_id: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in ENDED


class JobFile(BaseModel):
    """The content of job.json: all that is needed to run a job in the folder the file lies in.

    Of a live source, `address` is its URL as it was sent, and `source` only what it is called; `until` is when it ends,
    which is known once it has begun.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    source: Path
    options: JobOptions = JobOptions()
    trace: TraceContext | None = None
    address: str | None = None
    until: datetime | None = None

    @property
    def is_late(self) -> bool:
        """Whether its time is over."""
        return self.until is not None and datetime.now(UTC) >= self.until

    def live(self, config: Config) -> LiveSource | None:
        """The live source it follows, if it does."""
        if self.address is None:
            return None
        chosen = self.options
        options = LiveOptions(policy=chosen.policy, deadline_s=chosen.deadline_s, duration_s=chosen.duration_s)
        live = options.source(self.address, config)
        return live if live is None or self.until is None else replace(live, duration_s=None, until=self.until)

    def write(self, file: Path) -> None:
        """Write it so that a reader sees the old file or the new one; whose address may hold a password is private.

        Raises:
            OSError: It cannot be written.
        """
        draft = file.with_suffix(".part")
        draft.touch(mode=0o666 if self.address is None else 0o600)
        draft.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        draft.replace(file)

    @classmethod
    def read(cls, file: Path) -> JobFile:
        """Load a job file; a relative source is relative to it.

        Raises:
            ResultsError: It is missing or not a job file.
        """
        try:
            job = cls.model_validate_json(file.read_bytes())
        except OSError as error:
            raise ResultsError(f"{file}: {error.strerror}") from error
        except ValidationError as error:
            raise ResultsError(f"{file} is no job file: {error.errors()[0]['msg']}") from error
        return job.model_copy(update={"source": file.parent / job.source})


def new_job_id() -> str:
    """An id nobody can guess."""
    return secrets.token_hex(_ID_BYTES)


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one job, and its files beside those of a run."""

    path: Path

    @property
    def job_file(self) -> Path:
        """What was asked for."""
        return self.path / "job.json"

    @property
    def upload(self) -> Path:
        """The uploaded video, if the job came with one."""
        return self.path / "source"

    @property
    def progress(self) -> Path:
        """How far the run is."""
        return self.path / "progress.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder, so that one process alone runs the job.

        Raises:
            FolderInUse: Another one does.
            ResultsError: There is no such folder.
        """
        with locked(self.path / ".worker.lock"):
            yield

    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def remove(self) -> None:
        """Delete it with all its files."""
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class DataDir:
    """`paths.data_dir`: jobs, uploads on their way, the queue, and who works on it."""

    path: Path

    @property
    def uploads(self) -> Path:
        """Uploads that are not jobs yet."""
        return self.path / "uploads"

    @property
    def jobs(self) -> Path:
        """One folder a job."""
        return self.path / "jobs"

    @property
    def database_url(self) -> str:
        """The queue where no other database is named."""
        return f"sqlite:///{self.path / 'jobs.sqlite'}"

    def prepare(self) -> None:
        """Make the folders.

        Raises:
            ResultsError: They cannot be made.
        """
        try:
            for folder in (self.uploads, self.jobs, self.path / "executors"):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"paths.data_dir: {error.filename}: {error.strerror}") from error

    def sweep(self, is_known: Callable[[str], bool]) -> None:
        """Delete folders of no job, older than any request: their process ended before it entered the job; blocks."""
        for path in self.jobs.iterdir():
            if time.time() - path.stat().st_mtime > _REQUEST_S and not is_known(path.name):
                JobFolder(path).remove()

    def folder(self, job_id: str) -> JobFolder:
        """The folder of a job."""
        return JobFolder(self.jobs / job_id)

    @contextmanager
    def executor(self) -> Iterator[str]:
        """A name of this process among those that run jobs, held until the block ends.

        The first free number is taken, so that whoever starts after a crash goes on with the jobs of the dead.
        """
        for number in range(1000):
            name = f"{socket.gethostname()}-{number}"
            with suppress(FolderInUse), locked(self.path / "executors" / f"{name}.lock"):
                yield name
                return
        raise ResultsError(f"{self.path}: too many processes run jobs here")


@contextmanager
def locked(file: Path) -> Iterator[IO[bytes]]:
    """A file, made if it is missing, with an exclusive lock that ends with the block or the process.

    Raises:
        FolderInUse: Another process has the lock.
        ResultsError: The file cannot be opened.
    """
    try:
        stream = file.open("ab")
    except OSError as error:
        raise ResultsError(f"{file}: {error.strerror}") from error
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        stream.close()
        raise FolderInUse(f"{file.parent} is in use by another process") from error
    try:
        yield stream
    finally:
        with suppress(OSError):  # what a full disk did not take was told when it was written
            stream.close()
