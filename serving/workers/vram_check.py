"""Whether Stage 2 as configured fits on the GPU as it is now, told before anything is loaded."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline_ver2.config import Stage2Config, visible_gpu
from pipeline_ver2.errors import ConfigError
from serving.workers.stage2_engine import DEMO_MODEL_FOLDER, EngineName
from serving.workers.vram_plan import MARGIN_SHARE, SHARE_FLAG, WEIGHTS_GB, Card, CardReader, Need

logger = logging.getLogger(__name__)

_GIB = 1024**3
_SPLIT_FLAGS = ("--tensor-parallel-size", "-tp")
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


def read_card() -> Card | None:
    """The GPU this process sees first, or None without one, without its driver, or without nvidia-ml-py."""
    try:
        import pynvml
    except ImportError:
        return None
    return card_of(pynvml, visible_gpu())


def card_of(nvml: Any, visible: str | None) -> Card | None:  # noqa: ANN401 - untyped library
    """Ask NVML for a card.

    Args:
        nvml: The module of nvidia-ml-py.
        visible: Which card, by number or UUID, as CUDA_VISIBLE_DEVICES names it; None is the first, "" is none.
    """
    if visible in {"", "-1"}:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug("no GPU: %s", error)
        return None
    try:
        named = visible or "0"
        by_number = named.isdecimal()
        find = nvml.nvmlDeviceGetHandleByIndex if by_number else nvml.nvmlDeviceGetHandleByUUID
        handle = find(int(named) if by_number else named)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return Card(nvml.nvmlDeviceGetName(handle), memory.total / _GIB, (memory.total - memory.free) / _GIB)
    except nvml.NVMLError as error:
        logger.warning("GPU %s cannot be asked for its memory: %s", named, error)
        return None
    finally:
        nvml.nvmlShutdown()


def with_memory_planned(settings: Stage2Config, engine: EngineName, read: CardReader = read_card) -> Stage2Config:
    """Check that an engine fits on its GPU, and spell out vLLM's share of it. Without a GPU nothing is checked.

    Args:
        settings: What is configured.
        engine: Which engine will run; transformers works on one request at a time.
        read: Gives the card as it is now: Stage 1, which starts first, is among those who hold memory.

    Returns:
        The settings, for vLLM with its `--gpu-memory-utilization` unless `stage2.vllm_args` has one.

    Raises:
        ConfigError: It does not fit; the message says by how much, and what would be right.
    """
    card = read()
    if card is None:
        logger.debug("no GPU is visible: the memory of stage2.engine %s is not checked", engine)
        return settings
    given = _value_of(settings.vllm_args, SHARE_FLAG) if engine == "vllm" else None
    budget_gb, of_what = _budget(settings, card, given)
    need = Need(weights_gb(settings) / _split(settings, engine))
    at_once = settings.most_at_once if engine == "vllm" else 1
    low_gb, high_gb = need.of(at_once)
    if high_gb > budget_gb:
        raise ConfigError(_too_much(need, at_once, budget_gb, of_what, card))
    logger.info("VRAM plan: %d at once take %.4g-%.4g GB of %.4g GB %s", at_once, low_gb, high_gb, budget_gb, of_what)
    if engine != "vllm" or given is not None:
        return settings
    share = math.floor(1000 * min(budget_gb / card.total_gb, 1 - MARGIN_SHARE) + 1e-6) / 1000
    return settings.model_copy(update={"vllm_args": (SHARE_FLAG, f"{share:g}", *settings.vllm_args)})


def weights_gb(settings: Stage2Config) -> float:
    """The size of the model's files where they are on this machine, else the documented one."""
    folder = DEMO_MODEL_FOLDER if settings.model is None else Path(settings.model).expanduser()
    if not folder.is_dir():
        return WEIGHTS_GB
    sizes = [sum(file.stat().st_size for file in folder.glob(pattern)) for pattern in _WEIGHTS]
    return next((size / _GIB for size in sizes if size), WEIGHTS_GB)


def _budget(settings: Stage2Config, card: Card, given: str | None) -> tuple[float, str]:
    """`(GB, of what)`: vLLM's share if it is given, else the configured budget, else what is free."""
    budget_gb, of_what = card.free_gb, f"free on {card.name}"
    if given is not None:
        try:
            budget_gb, of_what = float(given) * card.total_gb, f"of stage2.vllm_args {SHARE_FLAG} {given}"
        except ValueError as error:
            raise ConfigError(f"stage2.vllm_args: {SHARE_FLAG} must be a number, not {given!r}") from error
    elif settings.memory_budget_gb is not None:
        budget_gb, of_what = settings.memory_budget_gb, "of stage2.memory_budget_gb"
    if budget_gb > card.free_gb:
        raise ConfigError(
            f"{of_what.removeprefix('of ')}: {budget_gb:.4g} GB do not fit by {budget_gb - card.free_gb:.4g} GB: "
            f"{card.name} has {card.free_gb:.4g} of {card.total_gb:.4g} GB free; take less, or free what others hold"
        )
    return budget_gb, of_what


def _too_much(need: Need, at_once: int, budget_gb: float, of_what: str, card: Card) -> str:
    _, high_gb = need.of(at_once)
    most, remedies = need.most(budget_gb), []
    if most:
        remedies.append(f"stage2.limit {most} would fit")
    if high_gb <= card.free_gb:
        remedies.append(f"a budget (stage2.memory_budget_gb) of {high_gb:.4g} GB would do")
    if not remedies:
        remedies.append(f"not even one request fits, it takes {need.of(1)[1]:.4g} GB")
    return (
        f"stage2.limit: {at_once} at once do not fit by {high_gb - budget_gb:.4g} GB: they take up to {high_gb:.4g} GB "
        f"({need.weights_gb:.4g} GB of weights, {need.high_gb:g} GB each) of {budget_gb:.4g} GB {of_what}; "
        f"{', or '.join(remedies)}"
    )


def _split(settings: Stage2Config, engine: EngineName) -> int:
    """Over how many cards vLLM splits the weights."""
    values = [_value_of(settings.vllm_args, flag) for flag in _SPLIT_FLAGS] if engine == "vllm" else []
    return max([int(value) for value in values if value is not None and value.isdecimal() and int(value)], default=1)


def _value_of(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag, given as `--flag value` or `--flag=value`; the last one counts."""
    found = None
    for at, argument in enumerate(arguments):
        if argument == flag and at + 1 < len(arguments):
            found = arguments[at + 1]
        elif argument.startswith(f"{flag}="):
            found = argument.partition("=")[2]
    return found
