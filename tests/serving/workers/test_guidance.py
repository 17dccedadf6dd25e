"""Schemas that can guide an answer, and those that cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline_ver2.config import Config, PipelineConfig, Stage2Config
from pipeline_ver2.errors import ConfigError, RequestError
from serving.workers.guidance import check_guidable, grammar_of
from serving.workers.stage2_server import build_app

GOOD: dict[str, Any] = {"type": "object", "properties": {"seen": {"type": "boolean"}}, "required": ["seen"]}
BAD: dict[str, Any] = {**GOOD, "not": {"required": ["hidden"]}}


def test_a_schema_becomes_a_grammar() -> None:
    """What can be expressed is, without blanks between the parts."""
    assert "whitespace_flexible" in grammar_of(json.dumps(GOOD))
    check_guidable(GOOD)
    check_guidable(None)


def test_what_no_grammar_can_express_is_refused() -> None:
    """The refusal names the keyword."""
    with pytest.raises(RequestError, match="not"):
        grammar_of(json.dumps(BAD))


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_configured_schema_that_cannot_guide_stops_the_start(engine: str) -> None:
    """Better one refusal at start than one for each slot."""
    config = Config(pipeline=PipelineConfig(answer_schema=BAD), stage2=Stage2Config.model_validate({"engine": engine}))
    with pytest.raises(ConfigError, match=r"pipeline\.answer_schema: .*not"):
        build_app(config)
