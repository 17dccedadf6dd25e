"""Which engine a configuration means, and its construction."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys

from pipeline_ver2.config import Stage2Config
from pipeline_ver2.errors import ConfigError
from serving.workers.stage2_engine import Engine, EngineName
from serving.workers.vllm_command import is_cpu_build
from serving.workers.vram_check import read_card, with_memory_planned
from serving.workers.vram_plan import Card, CardReader

logger = logging.getLogger(__name__)

_IMPORT_CHECK_TIMEOUT_S = 60


def resolve_engine(settings: Stage2Config) -> EngineName:
    """The engine `stage2.engine` means: `auto` is vllm where its interpreter can import it, else transformers.

    Raises:
        ConfigError: `vllm_python` cannot be run.
    """
    if settings.engine != "auto":
        return settings.engine
    chosen: EngineName = "vllm" if _can_import_vllm(settings.vllm_python) else "transformers"
    logger.info("stage2.engine auto: %s", chosen)
    return chosen


def build_engine(settings: Stage2Config, *, card: CardReader = read_card) -> Engine:
    """The engine a configuration means, not started. Its module is imported only now: engines are heavy.

    Args:
        settings: What is configured.
        card: Gives the GPU, for the engines that use one.

    Raises:
        ConfigError: `vllm_python` cannot be run, a library of the engine is not installed, or the GPU is too small.
    """
    name = resolve_engine(settings)
    try:
        if name == "emulated":
            from serving.workers.stage2_emulated import EmulatedEngine

            return EmulatedEngine(settings)
        if name == "remote":
            from serving.workers.stage2_remote import RemoteEngine

            return RemoteEngine(settings)
        if name == "vllm":
            from serving.workers.stage2_vllm import VllmEngine

            return VllmEngine(with_memory_planned(settings, name, lambda: _card_of_vllm(settings, card)))
        from serving.workers.stage2_transformers import TransformersEngine, uses_gpu

        return TransformersEngine(with_memory_planned(settings, name, card) if uses_gpu() else settings)
    except ImportError as error:
        raise ConfigError(f"stage2.engine {name}: {error}; install the extra that brings it") from error


def _card_of_vllm(settings: Stage2Config, card: CardReader) -> Card | None:
    """The GPU, unless vLLM's build for CPUs stands beside it."""
    found = card()
    return None if found is None or is_cpu_build(settings.vllm_python or sys.executable) else found


def _can_import_vllm(python: str | None) -> bool:
    if python is None or python == sys.executable:
        return importlib.util.find_spec("vllm") is not None
    check = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        done = subprocess.run([python, "-c", check], timeout=_IMPORT_CHECK_TIMEOUT_S, check=False, capture_output=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"stage2.vllm_python: {python} cannot be run: {error}") from error
    return done.returncode == 0
