"""`zroact bench gpu`: the transformers engine on CUDA with random weights of Qwen3.5-2B's size: latency and memory."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from pipeline_ver2.config import Config, Stage2Config
from pipeline_ver2.errors import ConfigError
from pipeline_ver2.prompts import build_request
from serving.bench.bars import Bar
from serving.bench.stage2 import make_questions
from serving.workers.chat import Chat, parse_chat
from serving.workers.stage2_engine import DEMO_MODEL_FOLDER, Watch
from serving.workers.stage2_transformers import TransformersEngine
from serving.workers.vram_plan import WEIGHTS_GB, Need

CONCURRENCIES = (1, 2, 4)
PACKAGES = ("torch", "transformers")
MAX_TOKENS = 64

# What of the embedded model's configuration is larger in a model of two billion weights.
TEXT_2B: Mapping[str, Any] = {
    "vocab_size": 248_320,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
    "full_attention_interval": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "max_position_embeddings": 32_768,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
VISION_2B: Mapping[str, Any] = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "num_position_embeddings": 2304,
}

_GIB = 1024**3

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GpuRow:
    """Requests sent so many at a time; `peak_gb` is the most that torch held, None on a CPU."""

    at_once: int
    latencies_s: tuple[float, ...]
    tokens: int
    wall_s: float
    peak_gb: float | None

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        p50, p99 = (1e3 * float(value) for value in np.percentile(self.latencies_s, (50, 99)))
        return {
            "concurrency": self.at_once,
            "requests": len(self.latencies_s),
            "p50_ms": round(p50, 1),
            "p99_ms": round(p99, 1),
            "tokens_per_s": round(self.tokens / self.wall_s, 1),
            "peak_gb": None if self.peak_gb is None else round(self.peak_gb, 2),
        }


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """The card, what the weights take on it, and the rows."""

    device: str
    weights_gb: float
    rows: tuple[GpuRow, ...]


def check_gpu() -> None:
    """Check that there is a GPU.

    Raises:
        ConfigError: There is none, or this torch does not use it.
    """
    if not torch.cuda.is_available():
        raise ConfigError("bench gpu: no CUDA GPU is usable here (torch.cuda.is_available() is False)")


def write_random_model(folder: Path, text: Mapping[str, Any], vision: Mapping[str, Any], device: str) -> None:
    """Write a model of the given sizes with random weights in bfloat16, and the embedded model's tokenizer.

    Args:
        folder: Where to; it is made.
        text: What is other than in the embedded model's text configuration.
        vision: The same of its vision configuration.
        device: Where the weights are drawn.
    """
    shutil.copytree(DEMO_MODEL_FOLDER, folder, ignore=shutil.ignore_patterns("model.safetensors", "config.json"))
    content = json.loads((DEMO_MODEL_FOLDER / "config.json").read_text(encoding="utf-8"))
    content["text_config"] |= text
    content["vision_config"] |= vision
    build: Any = Qwen3_5ForConditionalGeneration
    with torch.device(device):
        network = build._from_config(Qwen3_5Config.from_dict(content), dtype=torch.bfloat16)
    network.save_pretrained(folder)
    shutil.copy(DEMO_MODEL_FOLDER / "generation_config.json", folder)


async def measure(folder: Path, rounds: int, tell: Tell) -> GpuFigures:
    """Load a model folder and ask it about slots, 1, 2 and 4 at a time, after a warm-up.

    Raises:
        ConfigError: It cannot be loaded.
        StageError: It failed.
    """
    engine = TransformersEngine(Stage2Config(engine="transformers", model=str(folder)))
    await engine.start()
    try:
        weights_gb = await asyncio.to_thread(_weights_gb, folder)
        chats = await asyncio.to_thread(_chats, str(folder))
        await engine.complete(chats[0], Watch())
        tell("warm-up done")
        rows = []
        for at_once in CONCURRENCIES:
            rows.append(await _row(engine, chats, at_once, rounds))
            tell(f"{at_once} at once: {rows[-1].as_dict()['p50_ms']} ms")
    finally:
        await engine.close()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return GpuFigures(device, weights_gb, tuple(rows))


def bars_of(figures: GpuFigures) -> list[Bar]:
    """What the VRAM plan assumes, held against what was seen. The engine works on one request at a time."""
    peaks = [row.peak_gb for row in figures.rows if row.peak_gb is not None]
    bars = [Bar.hoped_for("weights, GB, as planned", figures.weights_gb, "<=", WEIGHTS_GB)]
    if peaks:
        bars.append(Bar.hoped_for("peak, GB, as planned for one request", max(peaks), "<=", Need().of(1)[1]))
    return bars


def build_report(machine: dict[str, Any], rounds: int, figures: GpuFigures, bars: Sequence[Bar]) -> dict[str, Any]:
    """The JSON report."""
    return {
        "bench": "gpu",
        "engines": {"stage2": "transformers"},
        "models": {"stage2": "random weights of Qwen3.5-2B's size"},
        "machine": {**machine, "gpu": figures.device},
        "workload": {"images": 3, "max_tokens": MAX_TOKENS, "rounds": rounds},
        "weights_gb": round(figures.weights_gb, 3),
        "rows": [row.as_dict() for row in figures.rows],
        "bars": [bar.as_dict() for bar in bars],
    }


async def _row(engine: TransformersEngine, chats: Sequence[Chat], at_once: int, rounds: int) -> GpuRow:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    answers: list[tuple[float, int]] = []
    for number in range(rounds):
        chosen = (chats[(number * at_once + at) % len(chats)] for at in range(at_once))
        answers += await asyncio.gather(*(_timed(engine, chat) for chat in chosen))
    wall_s = time.perf_counter() - begun
    peak_gb = torch.cuda.max_memory_allocated() / _GIB if torch.cuda.is_available() else None
    return GpuRow(at_once, tuple(time_s for time_s, _ in answers), sum(count for _, count in answers), wall_s, peak_gb)


async def _timed(engine: TransformersEngine, chat: Chat) -> tuple[float, int]:
    begun = time.perf_counter()
    completion = await engine.complete(chat, Watch())
    return time.perf_counter() - begun, completion["usage"]["completion_tokens"]


def _chats(model: str) -> list[Chat]:
    config = Config()
    questions = make_questions(config)
    bodies = (build_request(each, config.pipeline, model=model, max_tokens=MAX_TOKENS, send=1) for each in questions)
    return [parse_chat(body, default_max_tokens=MAX_TOKENS) for body in bodies]


def _weights_gb(folder: Path) -> float:
    """What the loaded weights take on the GPU, else in their files."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated() / _GIB
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / _GIB
