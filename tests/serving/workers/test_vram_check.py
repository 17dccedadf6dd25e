"""Stage 2's start on a GPU: read through NVML, refused where it does not fit. The cards are made up."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_ver2.config import Stage2Config
from pipeline_ver2.errors import ConfigError
from serving.workers.stage2_choice import build_engine
from serving.workers.stage2_engine import EngineName
from serving.workers.stage2_vllm import VllmEngine
from serving.workers.vram_check import card_of, read_card, weights_gb, with_memory_planned
from serving.workers.vram_plan import Card
from tests.stage2 import stage2_config

A6000 = Card("NVIDIA RTX A6000", 47.5, 27.0)  # Stage 1 is among those who hold memory
GIB = 1024**3


def planned(engine: EngineName = "vllm", card: Card | None = A6000, **stage2: object) -> Stage2Config:
    """What becomes of a configuration on a card."""
    settings: dict[str, Any] = {"engine": engine, "model": "Qwen/Qwen3.5-2B", **stage2}
    return with_memory_planned(Stage2Config.model_validate(settings), engine, lambda: card)


@pytest.mark.fault("B10")
@pytest.mark.parametrize(
    ("stage2", "said"),
    [
        ({"limit": 13}, "13 at once do not fit by 10.5 GB: they take up to 31 GB .* stage2.limit 7 would fit"),
        (
            {"memory_budget_gb": 8},
            r"2 at once do not fit by 1 GB: .* stage2.limit 1 .* a budget .* of 9 GB",
        ),
        ({"memory_budget_gb": 30}, "stage2.memory_budget_gb: 30 GB do not fit by 9.5 GB: .* 20.5 of 47.5 GB free"),
        ({"memory_budget_gb": 3, "limit": 20}, "not even one request fits, it takes 7 GB"),
        ({"vllm_args": ["--gpu-memory-utilization", "0.9"]}, "0.9: 42.75 GB do not fit by 22.25 GB"),
        ({"vllm_args": ["--gpu-memory-utilization=0.1"]}, "2 at once do not fit by 4.25 GB"),
        ({"vllm_args": ["--gpu-memory-utilization", "much"]}, "stage2.vllm_args: .* must be a number"),
        ({"limit": {"min": 1, "max": 8}}, "8 at once do not fit by 0.5 GB"),
    ],
)
def test_a_start_that_does_not_fit_says_by_how_much(stage2: dict[str, Any], said: str) -> None:
    """And what would be right instead."""
    with pytest.raises(ConfigError, match=said):
        planned(**stage2)


@pytest.mark.fault("B10")
def test_the_engine_is_not_built_where_it_does_not_fit(tmp_path: Path) -> None:
    """The daemon asks before it starts a child; on a larger card the child gets its budget."""
    settings = stage2_config(tmp_path, engine="vllm", model="m", memory_budget_gb=10).stage2
    with pytest.raises(ConfigError, match=r"stage2\.memory_budget_gb: 10 GB do not fit by 2 GB"):
        build_engine(settings, card=lambda: Card("small", 8, 0))
    engine = build_engine(settings, card=lambda: Card("large", 100, 0))
    assert isinstance(engine, VllmEngine)
    assert engine._settings.vllm_args == ("--gpu-memory-utilization", "0.1")


def test_transformers_on_a_cpu_asks_no_card(tmp_path: Path) -> None:
    """The card's memory is not where the model goes."""
    settings = stage2_config(tmp_path, engine="transformers").stage2
    assert build_engine(settings, card=lambda: pytest.fail("asked")).name == "transformers"


@pytest.mark.fault("B10")
def test_vllm_gets_an_explicit_share(caplog: pytest.LogCaptureFixture) -> None:
    """The budget, else what is free; never more than nine tenths; the user's own flag stays alone. Said in a line."""
    with caplog.at_level(logging.INFO):
        assert planned(memory_budget_gb=11.4).vllm_args == ("--gpu-memory-utilization", "0.24")
    assert caplog.messages == ["VRAM plan: 2 at once take 7-9 GB of 11.4 GB of stage2.memory_budget_gb"]
    assert planned().vllm_args == ("--gpu-memory-utilization", "0.431")
    assert planned(card=Card("empty", 80, 0)).vllm_args == ("--gpu-memory-utilization", "0.9")
    own = ("--max-model-len", "8", "--gpu-memory-utilization", "0.4")
    assert planned(vllm_args=own).vllm_args == own


def test_transformers_works_on_one_request_at_a_time() -> None:
    """Its limit does not multiply its memory, and vLLM's flags are none of its."""
    settings = planned("transformers", Card("small", 8, 1), limit=13, vllm_args=("--gpu-memory-utilization", "0.9"))
    assert settings.vllm_args == ("--gpu-memory-utilization", "0.9")
    with pytest.raises(ConfigError, match=r"1 at once do not fit by 0\.5 GB"):
        planned("transformers", Card("small", 8, 1.5), limit=13)


def test_without_a_card_nothing_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    """Said for those who debug only."""
    with caplog.at_level(logging.DEBUG):
        assert planned(card=None, limit=1000).limit == 1000
    assert [(record.levelname, record.message.split(":")[0]) for record in caplog.records] == [
        ("DEBUG", "no GPU is visible")
    ]


def test_weights_that_are_here_are_weighed(tmp_path: Path) -> None:
    """Else the documented 5 GB; several cards share them."""
    assert weights_gb(Stage2Config(model="Qwen/Qwen3.5-2B")) == 5
    assert weights_gb(Stage2Config(model=str(tmp_path))) == 5
    assert 0.001 < weights_gb(Stage2Config()) < 0.1
    with (tmp_path / "model-1.safetensors").open("wb") as file:
        file.truncate(40 * GIB)
    assert weights_gb(Stage2Config(model=str(tmp_path))) == 40
    with pytest.raises(ConfigError, match=r"do not fit by 23\.5 GB"):
        planned(model=str(tmp_path))
    planned(model=str(tmp_path), vllm_args=["--tensor-parallel-size", "4"])


class FakeNvml:
    """nvidia-ml-py as far as it is used; `broken` names the call that fails."""

    class NVMLError(Exception):
        """As NVML's."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.calls: list[tuple[str, object]] = []

    def _call(self, name: str, argument: object = None) -> object:
        self.calls.append((name, argument))
        if name == self.broken:
            raise self.NVMLError("it is broken")
        return argument

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any function
        return lambda *arguments: self._call(name.removeprefix("nvml"), *arguments)

    def nvmlDeviceGetName(self, handle: object) -> str:  # noqa: N802 - NVML's name
        """The card's."""
        return f"card {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> SimpleNamespace:  # noqa: N802 - NVML's name
        """Eight GiB, three of them free; `used` leaves out what the driver holds."""
        self._call("DeviceGetMemoryInfo", handle)
        return SimpleNamespace(total=8 * GIB, free=3 * GIB, used=4 * GIB)


@pytest.mark.parametrize(
    ("visible", "asked"),
    [
        (None, ("DeviceGetHandleByIndex", 0)),
        ("1", ("DeviceGetHandleByIndex", 1)),
        ("GPU-ab-c", ("DeviceGetHandleByUUID", "GPU-ab-c")),
    ],
)
def test_the_card_is_read(visible: str | None, asked: tuple[str, object]) -> None:
    """The first one that CUDA would take; NVML is let go of again."""
    nvml = FakeNvml()
    assert card_of(nvml, visible) == Card(f"card {asked[1]}", 8, 5)
    assert nvml.calls[1] == asked
    assert nvml.calls[-1][0] == "Shutdown"


@pytest.mark.parametrize("visible", ["", "-1"])
def test_a_hidden_gpu_is_none(visible: str) -> None:
    """The driver is not even asked."""
    nvml = FakeNvml()
    assert card_of(nvml, visible) is None
    assert nvml.calls == []


@pytest.mark.parametrize("broken", ["Init", "DeviceGetHandleByIndex", "DeviceGetMemoryInfo"])
def test_a_card_that_cannot_be_read_is_none(broken: str) -> None:
    """A driver that is missing or does not answer stops nothing."""
    nvml = FakeNvml(broken)
    assert card_of(nvml, None) is None
    assert nvml.calls[-1][0] == ("Init" if broken == "Init" else "Shutdown")


def test_this_machine_can_be_asked() -> None:
    """With a GPU or without, with its library or without."""
    card = read_card()
    assert card is None or card.total_gb > 0
