"""The GPU benchmark, as far as a CPU can show it: a random model of the embedded size, and the larger configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from typer.testing import CliRunner

from serving.bench.command import app
from serving.bench.gpu import (
    TEXT_2B,
    VISION_2B,
    GpuFigures,
    GpuRow,
    bars_of,
    build_report,
    measure,
    write_random_model,
)
from serving.workers.stage2_engine import DEMO_MODEL_FOLDER


def test_the_larger_configuration_has_two_billion_weights() -> None:
    """Built without memory; the planner's 5 GB hold them."""
    content = json.loads((DEMO_MODEL_FOLDER / "config.json").read_text())
    content["text_config"] |= TEXT_2B
    content["vision_config"] |= VISION_2B
    with torch.device("meta"):
        network = Qwen3_5ForConditionalGeneration(Qwen3_5Config.from_dict(content))
    count = sum(weight.numel() for weight in network.parameters())
    assert 1.8e9 < count < 2.5e9
    assert 2 * count / 2**30 < 5


@pytest.mark.slow
async def test_a_run_with_a_random_model(tmp_path: Path) -> None:
    """Every concurrency is measured through the real engine; a CPU has no peak."""
    write_random_model(tmp_path / "model", {}, {}, "cpu")
    told: list[str] = []
    figures = await measure(tmp_path / "model", 1, told.append)
    assert [(row.at_once, len(row.latencies_s)) for row in figures.rows] == [(1, 1), (2, 2), (4, 4)]
    assert all(row.tokens > 0 and min(row.latencies_s) > 0 for row in figures.rows)
    assert 0 < figures.weights_gb < 0.1
    assert len(told) == 4


def test_the_plan_is_held_against_what_was_seen() -> None:
    """Weights and peak; targets only, for the card decides, not the code."""
    row = GpuRow(1, (0.5, 0.7), 100, 2.0, 7.5)
    figures = GpuFigures("a card", 4.5, (row,))
    weights, peak = bars_of(figures)
    assert (weights.value, weights.ok, peak.value, peak.target, peak.ok) == (4.5, True, 7.5, 7, False)
    assert [bar.decides for bar in (weights, peak)] == [False, False]
    report = json.loads(json.dumps(build_report({}, 2, figures, [weights, peak])))
    assert report["machine"] == {"gpu": "a card"}
    assert (report["rows"][0]["tokens_per_s"], report["rows"][0]["p50_ms"]) == (50, 600)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    """One line, exit code 2."""
    said = CliRunner().invoke(app, ["gpu"])
    assert said.exit_code == 2
    assert "no CUDA GPU" in said.output
