"""The table of jobs: who asked for what, and what became of it. Every change is one statement, so that none is half."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from pipeline_ver2.errors import ConfigError, DatabaseAway, KeyReused, UnknownJob
from serving.jobs import ENDED, JobOptions, JobRecord, JobState

_METADATA = sql.MetaData()
_JOBS = sql.Table(
    "zroact_jobs",
    _METADATA,
    sql.Column("id", sql.String(32), primary_key=True),
    sql.Column("idempotency_key", sql.String(200), unique=True),
    sql.Column("name", sql.Text, nullable=False),
    sql.Column("options", sql.JSON, nullable=False),
    sql.Column("state", sql.String(16), nullable=False, index=True),
    sql.Column("error", sql.Text),
    sql.Column("attempts", sql.Integer, nullable=False, default=0),
    sql.Column("cancel_asked", sql.Boolean, nullable=False, default=False),
    sql.Column("created_at", sql.Float, nullable=False, index=True),
    sql.Column("started_at", sql.Float),
    sql.Column("ended_at", sql.Float),
    sql.Column("request_hash", sql.String(64)),
    sql.Column("trace_id", sql.String(32)),
    sql.Column("news_due_at", sql.Float),
    sql.Column("news_tries", sql.Integer),
)
_OPEN = _JOBS.c.state.in_(["queued", "running"])
_TIMES = ("created_at", "started_at", "ended_at")
_SHOWN = ("id", "name", "state", "error", "options", "attempts", "trace_id")
_LOCK_WAIT_S = 30
_CONNECT_S = 5


class JobStore:
    """Jobs in an SQL database; its methods block, may be called from any thread, and raise `DatabaseAway`.

    Args:
        url: SQLAlchemy URL of the database.
        has_news: Whether somebody is to be told of every job that ends; until then it is not forgotten.

    Raises:
        ConfigError: The database cannot be used.
    """

    def __init__(self, url: str, *, has_news: bool = False) -> None:
        self._has_news = has_news
        try:
            self._engine = _engine(_with_driver(url))
            if self._engine.dialect.name == "sqlite":
                sql.event.listen(self._engine, "connect", _set_up_sqlite)
            _create_table(self._engine)
        except (SQLAlchemyError, ImportError) as error:
            # What the database says may hold the URL with its password.
            raise ConfigError(f"serving.database_url: {type(error).__name__}: the database cannot be used") from error

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def insert(
        self,
        job_id: str,
        name: str,
        options: JobOptions,
        key: str | None,
        *,
        request_hash: str | None = None,
        trace_id: str | None = None,
    ) -> JobRecord:
        """Add a queued job; if there is one with this key already, nothing is added and that one is returned.

        Raises:
            KeyReused: That one was asked for by another request.
        """
        values = {
            "id": job_id,
            "idempotency_key": key,
            "name": name,
            "options": options.model_dump(),
            "state": "queued",
            "created_at": round(time.time(), 6),  # a time in JSON has no more digits, and pages begin at one
            "request_hash": request_hash,
            "trace_id": trace_id,
        }
        try:
            self._write(sql.insert(_JOBS).values(values))
        except IntegrityError:
            earlier = self.repeated(key, request_hash) if key is not None else None
            if earlier is None:
                raise
            return earlier
        return self.get(job_id)

    def get(self, job_id: str) -> JobRecord:
        """One job.

        Raises:
            UnknownJob: There is none of this id.
        """
        # PostgreSQL takes no text with a zero byte, not even to look for it.
        found = [] if "\0" in job_id else self._select(sql.select(_JOBS).where(_JOBS.c.id == job_id))
        if not found:
            raise UnknownJob(f"there is no job {job_id!r}")
        return found[0]

    def exists(self, job_id: str) -> bool:
        """Whether there is a job of this id."""
        return bool(self._select(sql.select(_JOBS).where(_JOBS.c.id == job_id)))

    def has_key(self, key: str) -> bool:
        """Whether a client has asked for a job with this idempotency key."""
        return bool(self._select(sql.select(_JOBS).where(_JOBS.c.idempotency_key == key)))

    def repeated(self, key: str, request_hash: str | None) -> JobRecord | None:
        """The job a client has asked for with this idempotency key, None if there is none, or no longer.

        Raises:
            KeyReused: It was asked for by another request.
        """
        with self._connected() as connection:
            row = connection.execute(sql.select(_JOBS).where(_JOBS.c.idempotency_key == key)).mappings().one_or_none()
        if row is None:
            return None
        if row["request_hash"] not in {None, request_hash}:
            raise KeyReused("Idempotency-Key: came with another video or other options before")
        return _record(row)

    def page(self, *, state: JobState | None, limit: int, before: tuple[float, str] | None) -> list[JobRecord]:
        """Jobs, newest first, at most `limit`, beginning behind the job that was made at `before[0]` as `before[1]`."""
        wanted = sql.select(_JOBS).order_by(_JOBS.c.created_at.desc(), _JOBS.c.id.desc()).limit(limit)
        if state is not None:
            wanted = wanted.where(_JOBS.c.state == state)
        if before is not None:
            wanted = wanted.where(sql.tuple_(_JOBS.c.created_at, _JOBS.c.id) < sql.tuple_(*before))
        return self._select(wanted)

    def counts(self) -> dict[str, int]:
        """Jobs by state; states without jobs are left out."""
        with self._connected() as connection:
            rows = connection.execute(sql.select(_JOBS.c.state, sql.func.count()).group_by(_JOBS.c.state))
            return {str(row[0]): int(row[1]) for row in rows}

    def open_ids(self) -> list[str]:
        """Ids of all jobs that have not ended, oldest first."""
        with self._connected() as connection:
            return list(connection.scalars(sql.select(_JOBS.c.id).where(_OPEN).order_by(_JOBS.c.created_at)))

    def ended(self) -> list[JobRecord]:
        """All jobs that have ended and that nobody is still to be told of, those that ended first at the front."""
        wanted = sql.select(_JOBS).where(_JOBS.c.state.in_(ENDED)).order_by(_JOBS.c.ended_at)
        return self._select(wanted.where(_JOBS.c.news_due_at.is_(None)) if self._has_news else wanted)

    def start(self, job_id: str) -> JobRecord | None:
        """Count an attempt and mark a job running; None if it has ended or is to be cancelled."""
        changed = self._write(
            sql.update(_JOBS)
            .where(_JOBS.c.id == job_id, _OPEN, _JOBS.c.cancel_asked.is_(False))
            .values(
                state="running",
                attempts=_JOBS.c.attempts + 1,
                started_at=sql.func.coalesce(_JOBS.c.started_at, time.time()),
            )
        )
        return self.get(job_id) if changed else None

    def release(self, job_id: str) -> None:
        """Put a running job back because the process that runs it is told to stop; the attempt does not count."""
        values = {"state": "queued", "attempts": _JOBS.c.attempts - 1}
        self._write(sql.update(_JOBS).where(_JOBS.c.id == job_id, _JOBS.c.state == "running").values(values))

    def end(self, job_id: str, state: JobState, error: str | None = None) -> bool:
        """Mark a job ended; False if it had ended before, which stays."""
        now = time.time()
        values = {"state": state, "error": error, "ended_at": now, "news_due_at": now if self._has_news else None}
        return self._write(sql.update(_JOBS).where(_JOBS.c.id == job_id, _OPEN).values(values)) == 1

    def ask_cancel(self, job_id: str) -> JobRecord:
        """Ask for a job's end: a queued one ends at once, a running one when its worker looks, an ended one stays.

        Raises:
            UnknownJob: There is none of this id.
        """
        self.get(job_id)
        queued, now = _JOBS.c.state == "queued", time.time()
        self._write(
            sql.update(_JOBS)
            .where(_JOBS.c.id == job_id, _OPEN)
            .values(
                cancel_asked=True,
                state=sql.case((queued, "cancelled"), else_=_JOBS.c.state),
                ended_at=sql.case((queued, now), else_=_JOBS.c.ended_at),
                news_due_at=sql.case((queued, now if self._has_news else None), else_=_JOBS.c.news_due_at),
            )
        )
        return self.get(job_id)

    def is_cancel_asked(self, job_id: str) -> bool:
        """Whether a job is to end; a job that was deleted is."""
        with self._connected() as connection:
            asked = connection.scalar(sql.select(_JOBS.c.cancel_asked).where(_JOBS.c.id == job_id))
            return asked is None or bool(asked)

    def take_news(self, most: int, hold_s: float) -> list[tuple[JobRecord, int]]:
        """Ended jobs that somebody is to be told of now, each with the number of this try.

        Who takes one has `hold_s` to say what came of it; then, for that process may be dead, another takes it.
        """
        due = sql.select(_JOBS).where(_JOBS.c.news_due_at <= time.time()).order_by(_JOBS.c.news_due_at).limit(most)
        with self._connected() as connection:
            rows = connection.execute(due).mappings().all()
        taken = []
        for row in rows:
            tries = (row["news_tries"] or 0) + 1
            as_it_was = (_JOBS.c.id == row["id"], _JOBS.c.news_due_at == row["news_due_at"])
            values = {"news_due_at": time.time() + hold_s, "news_tries": tries}
            if self._write(sql.update(_JOBS).where(*as_it_was).values(values)):
                taken.append((_record(row), tries))
        return taken

    def put_news_back(self, job_id: str, wait_s: float | None) -> None:
        """Somebody was not told of a job: try again after `wait_s`; None: no more, it was told or is given up."""
        due_at = None if wait_s is None else time.time() + wait_s
        self._write(sql.update(_JOBS).where(_JOBS.c.id == job_id).values(news_due_at=due_at))

    def delete(self, job_id: str) -> None:
        """Forget an ended job."""
        self._write(sql.delete(_JOBS).where(_JOBS.c.id == job_id, _JOBS.c.state.in_(ENDED)))

    def _select(self, statement: sql.Select[Any]) -> list[JobRecord]:
        with self._connected() as connection:
            return [_record(row) for row in connection.execute(statement).mappings()]

    def _write(self, statement: sql.Insert | sql.Update | sql.Delete) -> int:
        with self._connected() as connection, connection.begin():
            return connection.execute(statement).rowcount

    @contextmanager
    def _connected(self) -> Iterator[sql.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except (OperationalError, InterfaceError, PoolTimeoutError) as error:
            # What the database says may hold its address; its name for the trouble is enough.
            raise DatabaseAway(f"the database of jobs does not answer ({_trouble(error)})") from error


def _engine(url: sql.URL) -> sql.Engine:
    if url.get_backend_name() == "sqlite":
        return sql.create_engine(url)
    # Connections die with the database's server; each is looked at before it is used.
    return sql.create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": _CONNECT_S})


def _trouble(error: SQLAlchemyError) -> str:
    return type(error.orig if isinstance(error, DBAPIError) and error.orig else error).__name__


def _create_table(engine: sql.Engine) -> None:
    try:
        _make_or_complete(engine)
    except DBAPIError:  # another process did it between our look and our try; a second look sees it
        _make_or_complete(engine)


def _make_or_complete(engine: sql.Engine) -> None:
    """Make the table, or add the columns that one of an earlier version lacks."""
    _METADATA.create_all(engine)
    present = {column["name"] for column in sql.inspect(engine).get_columns(_JOBS.name)}
    for column in _JOBS.columns:
        if column.name not in present:
            added = sql.schema.CreateColumn(column).compile(dialect=engine.dialect)
            with engine.begin() as connection:
                connection.execute(sql.text(f"ALTER TABLE {_JOBS.name} ADD COLUMN {added}"))


def _with_driver(url: str) -> sql.URL:
    """The URL with the PostgreSQL driver that is installed, where it names none."""
    parsed = sql.make_url(url)
    plain = parsed.drivername in {"postgres", "postgresql"}
    return parsed.set(drivername="postgresql+psycopg") if plain else parsed


def _set_up_sqlite(connection: Any, _entry: ConnectionPoolEntry) -> None:  # noqa: ANN401 - any DB-API connection
    """Readers do not wait for writers, and writers wait for each other."""
    connection.execute(f"PRAGMA busy_timeout={_LOCK_WAIT_S * 1000}")
    connection.execute("PRAGMA journal_mode=WAL")


def _record(row: RowMapping | Mapping[str, Any]) -> JobRecord:
    values = {name: row[name] for name in _SHOWN}
    times = {name: None if row[name] is None else datetime.fromtimestamp(row[name], UTC) for name in _TIMES}
    return JobRecord.model_validate({**values, **times})
