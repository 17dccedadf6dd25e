"""Where and on what a benchmark runs: the demo clip, a folder of its own, and daemons on free ports."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline_ver2.config import (
    Config,
    Paths,
    PipelineConfig,
    ServingConfig,
    Stage1Config,
    Stage1Emulated,
    Stage2Config,
    Stage2Emulated,
)
from serving.bench.ideal import Workload

STAGE2_LIMIT = 4
CLIP = Path(__file__).parents[1] / "demo" / "clip.mp4"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, symbolic links resolved."""
    with tempfile.TemporaryDirectory(prefix="zroact-bench-") as name:
        yield Path(name).resolve()


def free_ports(count: int) -> list[int]:
    """Loopback ports nobody listened on a moment ago."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def emulated_config(folder: Path, workload: Workload, limit: int) -> Config:
    """Both stages emulated with the workload's service times, `limit` Stage 2 requests at a time."""
    port1, port2 = free_ports(2)
    return Config(
        paths=paths_in(folder),
        pipeline=PipelineConfig(
            keyframe_interval=workload.keyframe_interval, slot_frames=workload.slot_frames, stage2_window=limit
        ),
        stage1=Stage1Config(
            port=port1,
            engine="emulated",
            batch_size=workload.batch_size,
            max_batch=workload.batch_size,
            emulated=Stage1Emulated(service_s=workload.stage1_s),
        ),
        stage2=Stage2Config(
            port=port2,
            engine="emulated",
            limit=limit,
            emulated=Stage2Emulated(service_s=workload.stage2_s, per_extra_s=0),
        ),
    )


def jobs_config(folder: Path, jobs_at_once: int, max_queue: int) -> Config:
    """The job API on a free port, with both stages emulated and quick."""
    ports = free_ports(3)
    return Config(
        paths=paths_in(folder),
        stage1=Stage1Config(port=ports[0], engine="emulated", emulated=Stage1Emulated(service_s=0.05)),
        stage2=Stage2Config(port=ports[1], engine="emulated", emulated=Stage2Emulated(service_s=0.1)),
        serving=ServingConfig(port=ports[2], jobs_at_once=jobs_at_once, max_queue=max_queue),
    )


def demo_config(folder: Path) -> Config:
    """Both stages with the embedded demo models, everything else as by default."""
    port1, port2 = free_ports(2)
    return Config(
        paths=paths_in(folder),
        stage1=Stage1Config(port=port1, engine="onnx"),
        stage2=Stage2Config(port=port2, engine="transformers"),
    )


def stage1_config(folder: Path) -> Config:
    """The detector daemon with the embedded model, everything else as by default."""
    (port,) = free_ports(1)
    return Config(paths=paths_in(folder), stage1=Stage1Config(port=port))


def stage2_config(folder: Path, vllm_python: str | None) -> Config:
    """The answering daemon with the embedded model on vLLM."""
    (port,) = free_ports(1)
    # The same questions come again and again, and each of them shall be work.
    stage2 = Stage2Config(
        port=port,
        engine="vllm",
        vllm_python=vllm_python,
        vllm_args=("--dtype", "bfloat16", "--max-model-len", "2048", "--no-enable-prefix-caching"),
        limit=STAGE2_LIMIT,
    )
    return Config(paths=paths_in(folder), stage2=stage2)


def paths_in(folder: Path) -> Paths:
    """Everything in one folder, which is the only media root."""
    return Paths(media_roots=(folder,), data_dir=folder / "data", work_dir=folder / "work")
