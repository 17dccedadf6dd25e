"""`zroact bench jobs`: many clients upload small clips to the job API and follow their jobs; emulated engines."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import av
import numpy as np

from pipeline_ver2.config import Config, child_environment
from pipeline_ver2.errors import StageError
from pipeline_ver2.private_config import write_effective_config
from serving.bench.bars import Bar
from serving.bench.stage1_soak import rss_mb

PACKAGES = ("aiohttp", "av", "dbos", "fastapi", "numpy", "opencv-python-headless", "uvicorn")
WARM_UP_JOBS = 6
LOOK_S = 0.2
SAMPLE_S = 0.5

_FRAMES, _SIZE, _FPS = 60, (320, 240), 30
_LONGEST_JOB_S = 300.0
_STOP_S = 30.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    """How many clips come from how many clients."""

    uploads: int
    clients: int


@dataclass(slots=True)
class Seen:
    """What the clients saw; times in seconds."""

    posts_s: list[float] = field(default_factory=list)
    looks_s: list[float] = field(default_factory=list)
    jobs_s: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    refused: int = 0


@dataclass(frozen=True, slots=True)
class JobsFigures:
    """What a load came to: what clients saw, the loop's lag in milliseconds, resident memory in MiB, oldest first."""

    load: Load
    seen: Seen
    wall_s: float
    loop_lag: dict[str, float]
    rss_mb: tuple[float, ...]

    @property
    def look_p99_ms(self) -> float:
        """99th percentile of the time `GET /jobs/{id}` took."""
        return 1e3 * float(np.percentile(self.seen.looks_s, 99)) if self.seen.looks_s else float("nan")

    @property
    def memory_growth_percent(self) -> float:
        """From the median of the first half of the samples to that of the second."""
        half = max(1, len(self.rss_mb) // 2)
        return 100 * (statistics.median(self.rss_mb[-half:]) / statistics.median(self.rss_mb[:half]) - 1)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "wall_s": round(self.wall_s, 2),
            "ends": dict(self.seen.ends),
            "refused_429": self.seen.refused,
            "post_ms": _percentiles(self.seen.posts_s),
            "get_job_ms": _percentiles(self.seen.looks_s),
            "job_s": {name: round(value / 1e3, 2) for name, value in _percentiles(self.seen.jobs_s).items()},
            "loop_lag": self.loop_lag,
            "memory_growth_percent": round(self.memory_growth_percent, 2),
            "rss_mb": [round(sample, 1) for sample in self.rss_mb],
        }


async def measure(config: Config, folder: Path, load: Load, tell: Tell) -> JobsFigures:
    """Some jobs to warm up, then the load.

    Args:
        config: Where the API and the daemons are started, and their engines.
        folder: For the clip and the configuration.
        load: How much there is to do.
        tell: Is told of progress.

    Raises:
        StageError: The server did not start, or answered what it must not.
    """
    clip = await asyncio.to_thread(write_clip, folder / "clip.mp4")
    async with _hosted(config, folder) as (host, url), aiohttp.ClientSession(url) as session:
        await all_clients(session, clip, Load(WARM_UP_JOBS, config.serving.jobs_at_once), Seen(), lambda _: None)
        tell("warm-up done")
        seen, samples = Seen(), list[float]()
        begun = time.perf_counter()
        await _order(host, "begin")
        clients = asyncio.create_task(all_clients(session, clip, load, seen, tell))
        try:
            while not samples or not clients.done():
                samples.append(rss_mb(host.pid))
                await asyncio.wait([clients], timeout=SAMPLE_S)
        finally:
            clients.cancel()
            await asyncio.gather(clients, return_exceptions=True)
        clients.result()
        wall_s = time.perf_counter() - begun
        await _order(host, "end")
        lag = (await _line(host))["loop_lag"]
    return JobsFigures(load, seen, wall_s, lag, tuple(samples))


def bars_of(figures: JobsFigures) -> list[Bar]:
    """The bars."""
    return [
        Bar("jobs that succeeded", figures.seen.ends["succeeded"], "==", figures.load.uploads),
        Bar("GET /jobs/{id}: p99, ms", figures.look_p99_ms, "<", 200),
        Bar("event loop of the API: p99 of its lag, ms", figures.loop_lag.get("p99_ms", float("nan")), "<", 50),
        Bar("memory of the API, second half against first, %", figures.memory_growth_percent, "<=", 5),
    ]


def build_report(machine: dict[str, Any], config: Config, figures: JobsFigures, bars: Sequence[Bar]) -> dict[str, Any]:
    """The JSON report."""
    return {
        "bench": "jobs",
        "engines": {"stage1": config.stage1.engine, "stage2": config.stage2.engine},
        "machine": machine,
        "workload": {
            "uploads": figures.load.uploads,
            "clients": figures.load.clients,
            "jobs_at_once": config.serving.jobs_at_once,
            "max_queue": config.serving.max_queue,
            "clip": {"frames": _FRAMES, "width": _SIZE[0], "height": _SIZE[1], "fps": _FPS},
            "warm_up_jobs": WARM_UP_JOBS,
        },
        "jobs": figures.as_dict(),
        "bars": [bar.as_dict() for bar in bars],
    }


def write_clip(path: Path) -> bytes:
    """A small clip whose brightness rises; its content."""
    width, height = _SIZE
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=_FPS, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(_FRAMES):
            pixels = np.full((height, width, 3), 20 + number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return path.read_bytes()


@asynccontextmanager
async def _hosted(config: Config, folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The API and both daemons in a process of their own, and the URL of the API."""
    file = folder / "config.json"
    await asyncio.to_thread(write_effective_config, config, file)
    command = (sys.executable, "-P", "-m", "serving.bench.job_host", str(file))
    pipe = asyncio.subprocess.PIPE
    host = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=child_environment())
    try:
        yield host, (await _line(host))["url"]
    finally:
        if host.stdin is not None:
            host.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await host.wait()
        finally:
            if host.returncode is None:
                host.kill()
                await host.wait()


async def _line(host: asyncio.subprocess.Process) -> dict[str, Any]:
    line = await host.stdout.readline() if host.stdout is not None else b""
    if not line:
        raise StageError("the job server ended; its last words are above")
    told: dict[str, Any] = json.loads(line)
    return told


async def _order(host: asyncio.subprocess.Process, word: str) -> None:
    if host.stdin is not None:
        host.stdin.write(f"{word}\n".encode())
        await host.stdin.drain()


async def all_clients(session: aiohttp.ClientSession, clip: bytes, load: Load, seen: Seen, tell: Tell) -> None:
    """Upload so many clips from so many clients, and follow their jobs; `seen` takes what they see.

    Raises:
        StageError: In a group: the server answered what it must not.
    """
    numbers = iter(range(1, load.uploads + 1))
    async with asyncio.TaskGroup() as group:
        for _ in range(load.clients):
            group.create_task(_client(session, clip, numbers, seen, tell))


async def _client(session: aiohttp.ClientSession, clip: bytes, numbers: Iterator[int], seen: Seen, tell: Tell) -> None:
    """One job after the other, each followed to its end."""
    for number in numbers:
        begun = time.perf_counter()
        seen.ends[await _follow(session, await _post(session, clip, seen), seen)] += 1
        seen.jobs_s.append(time.perf_counter() - begun)
        if number % 20 == 0:
            tell(f"{sum(seen.ends.values())} jobs ended, {seen.refused} uploads were told to wait")


async def _post(session: aiohttp.ClientSession, clip: bytes, seen: Seen) -> str:
    """Upload until there is room; the path of the job."""
    while True:
        form = aiohttp.FormData()
        form.add_field("video", clip, filename="clip.mp4")
        begun = time.perf_counter()
        async with session.post("/jobs", data=form) as reply:
            text = await reply.text()
            seen.posts_s.append(time.perf_counter() - begun)
            if reply.status == 202:
                return str(json.loads(text)["links"]["self"])
            if reply.status != 429:
                raise StageError(f"POST /jobs answered {reply.status}: {text[:300]}")
            seen.refused += 1
            wait_s = float(reply.headers["Retry-After"])
        await asyncio.sleep(wait_s)


async def _follow(session: aiohttp.ClientSession, path: str, seen: Seen) -> str:
    """The state in which a job ends."""
    async with asyncio.timeout(_LONGEST_JOB_S):
        while True:
            begun = time.perf_counter()
            async with session.get(path) as reply:
                job = await reply.json()
                seen.looks_s.append(time.perf_counter() - begun)
                if reply.status != 200:
                    raise StageError(f"GET {path} answered {reply.status}")
            if job["ended_at"] is not None:
                return str(job["state"])
            await asyncio.sleep(LOOK_S)


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum, milliseconds."""
    if not seconds:
        return {}
    p50, p99 = np.percentile(seconds, [50, 99])
    figures = {"p50": p50, "p99": p99, "max": max(seconds)}
    return {name: round(1e3 * float(value), 2) for name, value in figures.items()}
