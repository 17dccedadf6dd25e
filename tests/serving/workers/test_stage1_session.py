"""The session: providers, their options, and runs through bound memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.errors import ConfigError
from serving.workers.stage1_contract import read_contract, read_model
from serving.workers.stage1_pixels import PIXELS, fuse
from serving.workers.stage1_session import (
    CPU,
    CUDA,
    TENSORRT,
    BoundRun,
    choose_providers,
    open_session,
    plain_run,
    provider_options,
)
from tests.tiny_detector import write_detector

MakeConfig = Callable[..., Config]


@pytest.mark.fault("A9")
@pytest.mark.parametrize(
    ("provider", "available", "chosen"),
    [
        ("auto", [CPU], (CPU,)),
        ("auto", [TENSORRT, CUDA, CPU], (CUDA, CPU)),
        ("cpu", [CUDA, CPU], (CPU,)),
        ("cuda", [TENSORRT, CUDA, CPU], (CUDA, CPU)),
        ("tensorrt", [TENSORRT, CUDA, CPU], (TENSORRT, CUDA, CPU)),
    ],
)
def test_providers_are_what_was_asked_for(
    stage1_config: MakeConfig, provider: str, available: list[str], chosen: tuple[str, ...]
) -> None:
    """`auto` takes CUDA if this ONNX Runtime has it; a named one comes first, what it needs behind it."""
    assert choose_providers(stage1_config(provider=provider).stage1, available) == chosen


@pytest.mark.fault("A9")
@pytest.mark.parametrize(("provider", "wanted"), [("cuda", CUDA), ("tensorrt", TENSORRT)])
def test_a_missing_provider_stops_the_start(stage1_config: MakeConfig, provider: str, wanted: str) -> None:
    """What was asked for and is not there is never replaced in silence."""
    with pytest.raises(ConfigError, match=f"stage1.provider: {provider} needs {wanted}, this ONNX Runtime has {CPU}"):
        choose_providers(stage1_config(provider=provider).stage1, [CPU])


@pytest.mark.fault("A8")
def test_options_of_the_providers(stage1_config: MakeConfig) -> None:
    """CUDA picks algorithms by heuristics and grows its memory by what is asked, within the configured bound."""
    free, bounded = stage1_config().stage1, stage1_config(gpu_mem_limit_gb=1.5).stage1
    options = {"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested"}
    assert provider_options(CUDA, free) == options
    assert provider_options(CUDA, bounded) == {**options, "gpu_mem_limit": 3 * 2**29}
    assert provider_options(TENSORRT, bounded) == {"trt_max_workspace_size": 3 * 2**29}
    assert (provider_options(TENSORRT, free), provider_options(CPU, bounded)) == ({}, {})


def test_bound_memory_gives_the_same_answers(stage1_config: MakeConfig, tiny_detector: Path) -> None:
    """Runs through memory that is kept per size answer as plain ones do, and an earlier answer stays as it was."""
    model = read_model(tiny_detector)
    session = ort.InferenceSession(fuse(model, read_contract(model, stage1_config().stage1)), providers=[CPU])
    bound, plain = BoundRun(session, PIXELS, "found", device="cpu"), plain_run(session, PIXELS, "found")
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, 256, (size, 3, 4, 32, 48), dtype=np.uint8) for size in (1, 2, 1, 2)]
    found = [bound(batch) for batch in batches]
    for batch, answer in zip(batches, found, strict=True):
        np.testing.assert_array_equal(answer, plain(batch))


@pytest.mark.parametrize("weights_beside", [False, True])
def test_a_session_says_what_it_is(stage1_config: MakeConfig, tmp_path: Path, *, weights_beside: bool) -> None:
    """Provider and threads are told; weights in a second file are found without naming its folder."""
    path = write_detector(tmp_path / "model.onnx", weights_beside=weights_beside)
    assert (tmp_path / "model.onnx.data").exists() == weights_beside
    config, model = stage1_config(threads=2, provider="cpu").stage1, read_model(path)
    loaded = open_session(path, model, read_contract(model, config), config)
    assert (loaded.provider, loaded.threads, loaded.unfused) == (CPU, 2, None)


def test_a_file_onnx_runtime_refuses_names_the_key(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """Weights that are missing beside the file stop the start."""
    path = write_detector(tmp_path / "model.onnx", weights_beside=True)
    (tmp_path / "model.onnx.data").unlink()
    config, model = stage1_config().stage1, read_model(path)
    with pytest.raises(ConfigError, match=r"stage1\.model_path: .*model\.onnx cannot be loaded"):
        open_session(path, model, read_contract(model, config), config)
