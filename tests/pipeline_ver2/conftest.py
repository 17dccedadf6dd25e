"""Settings for the orchestrator's tests."""

from __future__ import annotations

from typing import Any

from pipeline_ver2.config import Config, load_config
from tests.stand_ins import Stages


def settings_for(stages: Stages, **overrides: Any) -> Config:  # noqa: ANN401 - values of any key
    """A configuration that leads to the stand-ins; keys with `__` for dots."""
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    quick = {"pipeline.retry_for_s": 5.0, "stage1.timeout_s": 5.0, "stage2.timeout_s": 5.0}
    return load_config(None, {**quick, **stages.overrides(), **dotted}, environ={})
