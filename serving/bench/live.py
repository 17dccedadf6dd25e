"""`zroact bench live`: four cameras that ask Stage 2 for half as much again as it can do; the engines are emulated."""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from pipeline_ver2.config import Config
from pipeline_ver2.errors import StageError
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.results import JOURNAL_NAME, Results
from pipeline_ver2.rotation import rotated_files
from pipeline_ver2.streams import Stream, run_streams
from pipeline_ver2.supervisor import Supervisor
from serving.bench.bars import Bar
from serving.bench.daemons import emulated_config
from serving.bench.ideal import Workload
from serving.bench.loop_lag import LoopLag, sampled_lag
from serving.bench.stage1_soak import rss_mb

PACKAGES = ("aiohttp", "av", "fastapi", "numpy", "opencv-python-headless", "pillow", "uvicorn")
STREAMS, LIMIT, SERVICE_S = 4, 2, 0.82

_SIZE, _RATE = (320, 240), 30
_SAMPLE_S = 0.5
_STATES = ("ok", "failed", "shed", "dropped")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One stream: what its journal says, told apart from what its results count."""

    keyframes: int
    states: Mapping[str, int]
    latencies_s: tuple[float, ...]
    results: Results

    @property
    def arrived(self) -> int:
        """Slots that its keyframes make."""
        return math.ceil(self.keyframes / Workload().slot_frames)

    @property
    def uncounted(self) -> int:
        """Slots whose fate is unknown, or told twice."""
        counts = self.results.counts
        counted: dict[str, int] = {state: getattr(counts, state) for state in _STATES}
        differ = sum(abs(counted[state] - self.states.get(state, 0)) for state in _STATES)
        return abs(self.arrived - sum(counted.values())) + differ

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        counts = self.results.counts
        told = {"frames": counts.frames_decoded, "keyframes": counts.keyframes, "arrived": self.arrived}
        states = {state: getattr(counts, state) for state in _STATES}
        return {**told, **states, "lost": counts.lost, "latency_s": _percentiles(self.latencies_s)}


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """A whole run: each stream, the wall time, the event loop's lag, and resident memory in MiB, oldest first."""

    streams: Mapping[str, StreamFigures]
    deadline_s: float
    wall_s: float
    loop_lag: dict[str, float]
    rss_mb: tuple[float, ...]

    @property
    def latencies_s(self) -> list[float]:
        """Of all answered slots."""
        return [latency for stream in self.streams.values() for latency in stream.latencies_s]

    @property
    def answered(self) -> list[int]:
        """Slots answered, by stream."""
        return [stream.states.get("ok", 0) for stream in self.streams.values()]

    @property
    def offered(self) -> float:
        """Slots that arrived, in units of what Stage 2 can do in that time."""
        arrived = sum(stream.arrived for stream in self.streams.values())
        return arrived * SERVICE_S / LIMIT / self.wall_s

    @property
    def memory_growth_percent(self) -> float:
        """From the median of the second quarter of the samples to that of the last; the first is warming up."""
        quarter = max(1, len(self.rss_mb) // 4)
        before, after = self.rss_mb[quarter : 2 * quarter] or self.rss_mb, self.rss_mb[-quarter:]
        return 100 * (statistics.median(after) / statistics.median(before) - 1)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "wall_s": round(self.wall_s, 2),
            "latency_s": _percentiles(self.latencies_s),
            "offered_of_capacity": round(self.offered, 3),
            "loop_lag": self.loop_lag,
            "memory_growth_percent": round(self.memory_growth_percent, 2),
            "rss_mb": [round(sample, 1) for sample in self.rss_mb],
            "streams": {name: stream.as_dict() for name, stream in self.streams.items()},
        }


async def measure(folder: Path, seconds: float, tell: Tell) -> LiveFigures:
    """Four files read as fast as they play, through daemons of their own.

    Args:
        folder: For the file, the daemons and the results.
        seconds: How long.
        tell: Is told of progress.

    Raises:
        StageError: A stream has no results.
    """
    clip = await asyncio.to_thread(write_clip, folder / "clip.mp4", seconds)
    config = live_config(folder)
    streams = [Stream(id=f"camera-{number}", source=str(clip), live=True) for number in range(1, STREAMS + 1)]
    out, samples = folder / "out", list[float]()
    async with Supervisor(config), sampled_lag() as lag:
        tell(f"{STREAMS} streams for {seconds:g} s")
        begun = time.perf_counter()
        run = asyncio.create_task(run_streams(streams, config, out, LiveSource("")))
        try:
            while not run.done():
                await asyncio.wait([run], timeout=_SAMPLE_S)
                samples.append(rss_mb(os.getpid()))
        finally:
            run.cancel()
            await asyncio.wait([run])
        wall_s = time.perf_counter() - begun
    figures = {}
    for name, ended in run.result().items():
        if ended.results is None:
            raise StageError(f"{name}: {ended.error}")
        figures[name] = await asyncio.to_thread(_read, out / name, ended.results)
    return LiveFigures(figures, config.live.deadline_s, min(wall_s, seconds), LoopLag.as_dict(lag), tuple(samples))


def live_config(folder: Path) -> Config:
    """Both stages emulated: the documented detector, and an answerer that does 2.44 slots a second."""
    return emulated_config(folder, Workload(stage2_s=SERVICE_S), LIMIT)


def write_clip(path: Path, seconds: float) -> Path:
    """A bright square that moves, 320x240 at 30 fps, cheap to decode."""
    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=_RATE)
        stream.width, stream.height, stream.pix_fmt = *_SIZE, "yuv420p"
        stream.codec_context.gop_size = _RATE
        for number in range(round(seconds * _RATE)):
            pixels = np.zeros((_SIZE[1], _SIZE[0], 3), np.uint8)
            left = number % (_SIZE[0] - 40)
            pixels[100:140, left : left + 40] = 200
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, _RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def bars_of(figures: LiveFigures) -> list[Bar]:
    """The bars."""
    most, least = max(figures.answered), min(figures.answered)
    p99_s = _percentiles(figures.latencies_s).get("p99", float("nan"))
    answered = sum(figures.answered) * SERVICE_S / LIMIT / figures.wall_s
    return [
        Bar("slots offered / what Stage 2 can do", figures.offered, ">=", 1.4),
        Bar("frame to answer: p99 / deadline", p99_s / figures.deadline_s, "<=", 1),
        Bar("least served stream / most served", least / most if most else float("nan"), ">=", 0.9),
        Bar("slots not counted exactly once", sum(each.uncounted for each in figures.streams.values()), "==", 0),
        Bar("memory, last quarter against second, % more", figures.memory_growth_percent, "<=", 5),
        Bar("event loop: p99 of its lag, ms", figures.loop_lag.get("p99_ms", float("nan")), "<", 20),
        Bar.hoped_for("slots answered / what Stage 2 can do", answered, ">=", 0.9),
    ]


def build_report(machine: dict[str, Any], figures: LiveFigures, bars: Sequence[Bar]) -> dict[str, Any]:
    """The JSON report."""
    return {
        "bench": "live",
        "engines": {"stage1": "emulated", "stage2": "emulated"},
        "machine": machine,
        "workload": {
            "streams": STREAMS,
            "fps": _RATE,
            "stage1_service_s": Workload().stage1_s,
            "stage2_service_s": SERVICE_S,
            "stage2_limit": LIMIT,
            "deadline_s": figures.deadline_s,
        },
        "live": figures.as_dict(),
        "bars": [bar.as_dict() for bar in bars],
    }


def _read(folder: Path, results: Results) -> StreamFigures:
    """What the journal of a stream says."""
    keyframes, states, latencies = 0, Counter[str](), []
    for file in (*rotated_files(folder), folder / JOURNAL_NAME):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            keyframes += record["type"] == "keyframe"
            if record["type"] == "slot":
                states[record["state"]] += 1
                latencies += [record["latency_s"]] if "latency_s" in record else []
    return StreamFigures(keyframes, states, tuple(latencies), results)


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    values = np.percentile(seconds, [50, 90, 99, 100])
    return {name: round(float(value), 3) for name, value in zip(("p50", "p90", "p99", "max"), values, strict=True)}
