"""The grammar a JSON schema becomes to guide an answer, on the engines of this project and in vLLM."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from pipeline_ver2.errors import ConfigError, RequestError


def grammar_of(schema: str) -> str:
    """The grammar of a schema given as JSON text; no free whitespace, so that no answer can end in blanks.

    Raises:
        RequestError: The schema uses what a grammar cannot express.
    """
    import llguidance  # an engine's library: whoever only forwards does without it

    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    except ValueError as error:
        raise RequestError(f"response_format: {error}") from error
    problem = llguidance.LLMatcher.validate_grammar(grammar)
    if problem:
        raise RequestError(f"response_format: this schema cannot guide the answer: {problem[:300]}")
    return str(grammar)


def check_guidable(schema: Mapping[str, Any] | None) -> None:
    """Check at start that the configured schema of answers can guide them, where the library for it is installed.

    Raises:
        ConfigError: It cannot; every slot would fail.
    """
    if schema is None or importlib.util.find_spec("llguidance") is None:
        return
    try:
        grammar_of(json.dumps(schema))
    except RequestError as error:
        raise ConfigError(f"pipeline.answer_schema: {error}") from error
