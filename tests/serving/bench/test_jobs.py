"""The jobs benchmark: its bars, its arithmetic, and a small load on a real job server."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipeline_ver2.errors import StageError
from serving.bench.bars import passed
from serving.bench.daemons import jobs_config
from serving.bench.jobs import JobsFigures, Load, Seen, all_clients, bars_of, build_report, measure
from serving.bench.tables import jobs_table

MISSES = {
    "a job that failed": Seen(looks_s=[0.01], ends=Counter(succeeded=9, failed=1)),
    "slow answers": Seen(looks_s=[0.01] * 98 + [0.3] * 2, ends=Counter(succeeded=10)),
    "no answers": Seen(ends=Counter(succeeded=10)),
}


def figures(
    seen: Seen | None = None, lag_ms: float = 10, rss_mb: tuple[float, ...] = (100, 101, 102, 103)
) -> JobsFigures:
    """Ten jobs on a machine that does well, but for what is named."""
    good = Seen(posts_s=[0.02], looks_s=[0.01], jobs_s=[2.0], ends=Counter(succeeded=10), refused=3)
    return JobsFigures(Load(10, 4), seen or good, 5.0, {"p50_ms": 1, "p99_ms": lag_ms, "max_ms": 2 * lag_ms}, rss_mb)


def test_a_server_that_does_well() -> None:
    """Every bar is reached."""
    assert [bar.ok for bar in bars_of(figures())] == [True] * 4


@pytest.mark.parametrize("miss", MISSES)
def test_what_clients_must_not_see(miss: str) -> None:
    """Jobs that fail, answers that are slow or do not come."""
    assert not passed(bars_of(figures(MISSES[miss])))


def test_a_loop_that_is_late_and_memory_that_grows() -> None:
    """Each misses its bar; a lag that was not measured does too."""
    assert [bar.ok for bar in bars_of(figures(lag_ms=60))] == [True, True, False, True]
    assert [bar.ok for bar in bars_of(figures(lag_ms=math.nan))] == [True, True, False, True]
    growing = figures(rss_mb=(100, 100, 106, 106))
    assert growing.memory_growth_percent == pytest.approx(6)
    assert [bar.ok for bar in bars_of(growing)] == [True, True, True, False]


def test_one_sample_of_memory_is_a_level() -> None:
    """Of a load that is over at once."""
    assert figures(rss_mb=(100,)).memory_growth_percent == 0


async def test_an_upload_that_is_told_to_wait() -> None:
    """It comes again after the time it was told, is counted, and its job is followed; any other refusal ends all."""
    statuses = [429, 202, 500]
    looks = iter([None, "2026-11-30T12:00:00Z"])

    async def post(_request: web.Request) -> web.Response:
        body = {"links": {"self": "/jobs/a"}}
        return web.json_response(body, status=statuses.pop(0), headers={"Retry-After": "0"})

    async def look(_request: web.Request) -> web.Response:
        return web.json_response({"state": "partial", "ended_at": next(looks)})

    app, seen = web.Application(), Seen()
    app.add_routes([web.post("/jobs", post), web.get("/jobs/a", look)])
    async with TestServer(app) as server, aiohttp.ClientSession(server.make_url("/")) as session:
        await all_clients(session, b"clip", Load(1, 3), seen, lambda _: None)
        assert (seen.refused, seen.ends, len(seen.looks_s)) == (1, {"partial": 1}, 2)
        with pytest.raises(ExceptionGroup) as failed:
            await all_clients(session, b"clip", Load(1, 1), seen, lambda _: None)
        assert failed.group_contains(StageError, match="answered 500")


@pytest.mark.slow
async def test_a_small_load(tmp_path: Path) -> None:
    """Ten uploads of four clients, two jobs at a time: all end well, and everything is measured."""
    progress: list[str] = []
    config, load = jobs_config(tmp_path, 2, 12), Load(10, 4)
    found = await measure(config, tmp_path, load, progress.append)
    report = build_report({"cpu": "", "cores": 1, "memory_gb": 1, "load_average": []}, config, found, bars_of(found))
    assert (found.seen.ends, found.seen.refused, len(found.seen.posts_s)) == ({"succeeded": 10}, 0, 10)
    assert len(found.seen.looks_s) >= 10
    assert found.loop_lag["p99_ms"] >= found.loop_lag["p50_ms"] >= 0
    assert found.rss_mb
    assert progress[0] == "warm-up done"
    assert jobs_table(report).row_count == 6
