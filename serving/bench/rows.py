"""The rows of the seed benchmark: ways to put the same workload through the same two stages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from pipeline.main import run_baseline
from pipeline_ver2.config import Config
from pipeline_ver2.errors import ConfigError
from pipeline_ver2.job import Job
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import Results
from serving.bench.ideal import Workload, finish_s
from serving.bench.loop_lag import InlineExecutor
from serving.bench.variants import run_gathered

Run = Callable[[Job, Config, TimingRecorder], Awaitable[Results]]


@dataclass(frozen=True, slots=True)
class Row:
    """One way: `limit` Stage 2 requests at a time, stages overlapping or not; `samples_lag` watches the event loop."""

    name: str
    title: str
    run: Run
    limit: int
    overlap: bool
    samples_lag: bool = False

    def ideal_s(self, workload: Workload) -> float:
        """What the row would take without overhead."""
        return finish_s(workload, limit=self.limit, overlap=self.overlap)


async def _sequential(job: Job, config: Config, recorder: TimingRecorder) -> Results:
    return await run_baseline(job.source, job.out, config, recorder=recorder)


async def _orchestrated(job: Job, config: Config, recorder: TimingRecorder) -> Results:
    return await run_pipeline(job, config, recorder=recorder)


async def _blocking(job: Job, config: Config, recorder: TimingRecorder) -> Results:
    return await run_pipeline(job, config, recorder=recorder, decode_executor=InlineExecutor())


_ALL = (
    Row("sequential", "sequential", _sequential, limit=1, overlap=False),
    Row("a", "A", run_gathered, limit=1, overlap=False),
    Row("ab2", "A + B(2)", run_gathered, limit=2, overlap=False),
    *(Row(f"abc{limit}", f"A + B + C at {limit}", _orchestrated, limit, overlap=True) for limit in (1, 2, 3, 4)),
    Row("f-off", "A + B + C at 2, F off", _blocking, limit=2, overlap=True, samples_lag=True),
    Row("f-on", "A + B + C at 2, F on", _orchestrated, limit=2, overlap=True, samples_lag=True),
)
ROWS: Mapping[str, Row] = {row.name: row for row in _ALL}


def choose_rows(names: str | None) -> tuple[Row, ...]:
    """The rows of a comma-separated list, in the order of the table; all of them for None.

    Raises:
        ConfigError: A name that is none.
    """
    if names is None:
        return _ALL
    wanted = {name.strip() for name in names.split(",")}
    unknown = sorted(wanted - ROWS.keys())
    if unknown:
        raise ConfigError(f"--rows: {unknown[0]!r} is no row; they are {', '.join(ROWS)}")
    return tuple(row for row in _ALL if row.name in wanted)
