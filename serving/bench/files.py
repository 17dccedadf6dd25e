"""`zroact bench files`: a long 1080p file through the orchestrator: its memory, and what frame extraction costs."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from pipeline_ver2.config import Config, child_environment
from pipeline_ver2.errors import StageError
from pipeline_ver2.main import FrameExtractor, resize
from pipeline_ver2.results import Results, read_results
from pipeline_ver2.supervisor import Supervisor
from serving.bench.bars import Bar
from serving.bench.stage1_soak import rss_mb

PACKAGES = ("av", "numpy", "pillow", "opencv-python-headless")
MODEL_SIZE = (224, 224)
KEYFRAME_INTERVAL = 11

HURRY = 100
"""How many times shorter the emulated engines are than the documented ones."""

_FPS = 30
_CLIP_S = 10
_SAMPLE_S = 0.5
_PATIENCE_S = 10.0

Tell = Callable[[str], None]
Way = Literal["extraction", "bare", "scaled"]


@dataclass(frozen=True, slots=True)
class Round:
    """Frames a second of processor time of each way to get frames of the model's size, one right after the other.

    `extraction` is what the pipeline does. `bare` decodes, converts and resizes every frame as it does, and nothing
    else. `scaled` lets FFmpeg scale and convert in one step, which gives other pixels than the model was trained on.
    """

    extraction: float
    bare: float
    scaled: float

    @property
    def ratio(self) -> float:
        """Extraction / bare loop."""
        return self.extraction / self.bare


@dataclass(frozen=True, slots=True)
class FilesFigures:
    """The rounds, and a long run: how long the file was, what came out, and the orchestrator's memory, oldest first."""

    rounds: tuple[Round, ...]
    seconds: float
    wall_s: float
    results: Results
    running_mb: tuple[float, ...]
    drawing_mb: tuple[float, ...]

    @property
    def median_ratio(self) -> float:
        """Median of the rounds' ratios."""
        return statistics.median(each.ratio for each in self.rounds)

    @property
    def growth_percent(self) -> float:
        """Of the run's memory: from the median of its first half to that of its second."""
        half = max(1, len(self.running_mb) // 2)
        return 100 * (statistics.median(self.running_mb[half:]) / statistics.median(self.running_mb[:half]) - 1)

    @property
    def peak_mb(self) -> float:
        """The most the process ever had, drawing the timeline included."""
        return max(*self.running_mb, *self.drawing_mb)


def make_clip(path: Path, *, size: tuple[int, int] = (1920, 1080), seconds: float = _CLIP_S) -> None:
    """Write a clip of `size` (width, height) that is quickly decoded: a light shape moves over a soft gradient."""
    width, height = size
    ground = np.linspace(40, 160, height, dtype=np.uint8)[:, None, None].repeat(width, axis=1).repeat(3, axis=2)
    options = {"preset": "ultrafast", "tune": "fastdecode", "crf": "28", "g": str(2 * _FPS), "threads": "1"}
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=_FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(round(seconds * _FPS)):
            picture = ground.copy()
            left = number * 4 % (width * 3 // 4)
            picture[height // 4 : height * 3 // 4, left : left + width // 8] = 220
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode(None))


def repeat_clip(clip: Path, path: Path, times: int) -> None:
    """Write a clip again and again into one file, without coding it anew."""
    with av.open(str(path), "w") as output:
        stream = None
        for turn in range(times):
            with av.open(str(clip)) as source:
                video = source.streams.video[0]
                stream = stream or output.add_stream_from_template(video)
                length = video.duration or 0
                for packet in source.demux(video):
                    if packet.dts is None or packet.pts is None:
                        continue
                    packet.pts, packet.dts = packet.pts + turn * length, packet.dts + turn * length
                    packet.stream = stream
                    output.mux_one(packet)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long the file is, how often extraction is measured, and of what size (width, height) the pictures are."""

    minutes: float = 30
    rounds: int = 7
    size: tuple[int, int] = (1920, 1080)


async def measure(config: Config, folder: Path, plan: Plan, tell: Tell) -> FilesFigures:
    """Measure extraction in alternating rounds, then run a long file.

    Args:
        config: Emulated daemons, which are started.
        folder: For the clip, the long file and the results.
        plan: How much is measured.
        tell: Is told of progress.

    Raises:
        StageError: A daemon failed, or the run did not answer every slot.
    """
    clip, film = folder / "clip.mp4", folder / "long.mp4"
    await asyncio.to_thread(make_clip, clip, size=plan.size)
    measured = []
    for number in range(1, plan.rounds + 1):
        measured.append(await asyncio.to_thread(measure_round, clip, number))
        tell(f"round {number} of {plan.rounds}: extraction / bare loop {measured[-1].ratio:.3f}")
    times = max(1, round(plan.minutes * 60 / _CLIP_S))
    await asyncio.to_thread(repeat_clip, clip, film, times)
    tell(f"{times * _CLIP_S / 60:.1f} minutes of {plan.size[0]}x{plan.size[1]}")
    async with Supervisor(config):
        begun = time.perf_counter()
        running, drawing = await run_apart(film, folder, config)
        wall_s = time.perf_counter() - begun
    results = read_results(folder / "out")
    if results.counts.ok != results.counts.slots:
        raise StageError(f"{results.counts.ok} of {results.counts.slots} slots were answered")
    return FilesFigures(tuple(measured), times * _CLIP_S, wall_s, results, running, drawing)


async def run_apart(film: Path, folder: Path, config: Config) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The orchestrator in a process of its own: its memory until its results are there, and from then on.

    Raises:
        StageError: It failed; the message has its last line.
    """
    settings, results = folder / "config.json", folder / "out" / "results.json"
    settings.write_text(config.model_dump_json())
    arguments = (str(film), "--no-spawn", "--config", str(settings), "--out", str(folder / "out"))
    with (folder / "run.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pipeline_ver2.realtime_pipeline", *arguments),
            env=child_environment(),
            stdout=log,
            stderr=log,
        )
    running: list[float] = []
    drawing: list[float] = []
    ended = asyncio.ensure_future(process.wait())
    try:
        while not ended.done():
            with suppress(StageError):  # it ends between two looks
                (drawing if results.exists() else running).append(rss_mb(process.pid))
            await asyncio.wait([ended], timeout=_SAMPLE_S)
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait([ended], timeout=_PATIENCE_S)
            if process.returncode is None:
                process.kill()
                await ended
    if process.returncode:
        told = (folder / "run.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise StageError(f"the run ended with {process.returncode}: {''.join(told)}")
    return tuple(running), tuple(drawing)


def measure_round(clip: Path, number: int) -> Round:
    """Every way once, the order turned round each time."""
    ways: dict[Way, Callable[[Path], int]] = {"extraction": _extract, "bare": _bare, "scaled": _scaled}
    order = list(ways) if number % 2 else list(reversed(ways))
    speeds: dict[Way, float] = {}
    for way in order:
        # With one thread each, processor time is what counts: what neighbours take of the machine is not in it.
        begun = time.process_time()
        frames = ways[way](clip)
        speeds[way] = frames / (time.process_time() - begun)
    return Round(**speeds)


def _extract(clip: Path) -> int:
    with FrameExtractor(clip, grid_fps=_FPS, keyframe_interval=KEYFRAME_INTERVAL, model_size=MODEL_SIZE) as frames:
        return sum(1 for _ in frames)


def _bare(clip: Path) -> int:
    count = 0
    with av.open(str(clip)) as container:
        _as_the_pipeline(container.streams.video[0])
        reformatter = VideoReformatter()  # kept, else its tables are made anew for each frame
        for frame in container.decode(video=0):
            rgb = reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
            resize(rgb.astype(np.uint8, copy=False), MODEL_SIZE)
            count += 1
    return count


def _scaled(clip: Path) -> int:
    count, (height, width) = 0, MODEL_SIZE
    with av.open(str(clip)) as container:
        _as_the_pipeline(container.streams.video[0])
        reformatter = VideoReformatter()
        for frame in container.decode(video=0):
            reformatter.reformat(frame, width, height, "rgb24", threads=1).to_ndarray()
            count += 1
    return count


def _as_the_pipeline(stream: av.VideoStream) -> None:
    """One decoding thread, as the pipeline has."""
    stream.thread_type, stream.thread_count = "SLICE", 1


def bars_of(figures: FilesFigures) -> list[Bar]:
    """The bars."""
    return [
        Bar("frame extraction / bare loop: median of the rounds", figures.median_ratio, ">=", 0.85),
        Bar("memory: second half over first half, per cent", figures.growth_percent, "<=", 5),
        Bar("memory: most, MiB", figures.peak_mb, "<", 400),
    ]


def build_report(machine: dict[str, Any], plan: Plan, figures: FilesFigures, bars: Sequence[Bar]) -> dict[str, Any]:
    """The JSON report."""
    counts = figures.results.counts
    thinned = figures.running_mb[:: max(1, len(figures.running_mb) // 100)]
    return {
        "bench": "files",
        "engines": {stage: told["engine"] for stage, told in figures.results.models.items()},
        "machine": machine,
        "workload": {"size": list(plan.size), "fps": _FPS, "seconds": figures.seconds, "rounds": plan.rounds},
        "extraction": {
            "rounds": [
                {"extraction_fps": round(each.extraction, 1), "bare_fps": round(each.bare, 1)}
                | {"scaled_fps": round(each.scaled, 1), "ratio": round(each.ratio, 4)}
                for each in figures.rounds
            ],
            "median_ratio": round(figures.median_ratio, 4),
        },
        "run": {
            "wall_s": round(figures.wall_s, 2),
            "times_real_time": round(figures.seconds / figures.wall_s, 2),
            "frames": counts.frames_decoded,
            "keyframes": counts.keyframes,
            "slots": counts.slots,
            "memory_growth_percent": round(figures.growth_percent, 2),
            "memory_most_mb": round(figures.peak_mb, 1),
            "rss_mb": [round(sample, 1) for sample in thinned],
            "rss_drawing_mb": [round(sample, 1) for sample in figures.drawing_mb],
        },
        "bars": [bar.as_dict() for bar in bars],
    }
