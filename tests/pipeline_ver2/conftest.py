"""Settings for the orchestrator's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.results import Results
from tests.stand_ins import Stages, stand_ins


def settings_for(stages: Stages, **overrides: Any) -> Config:  # noqa: ANN401 - values of any key
    """A configuration that leads to the stand-ins; keys with `__` for dots."""
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    quick = {"pipeline.retry_for_s": 5.0, "stage1.timeout_s": 5.0, "stage2.timeout_s": 5.0}
    return load_config(None, {**quick, **stages.overrides(), **dotted}, environ={})


@pytest.fixture
async def stages() -> AsyncIterator[Stages]:
    """Both scripted stages."""
    async with stand_ins() as both:
        yield both


def states(results: Results) -> list[str]:
    """The slots' states in order."""
    return [slot.state for slot in results.slots]
