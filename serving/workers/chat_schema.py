"""Whether the JSON schema of a request is one; asked again and again for the same schema, slot after slot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema

from pipeline_ver2.errors import RequestError

_REMEMBERED, _LONGEST_REMEMBERED = 64, 16_384


def check_json_schema(schema: Mapping[str, Any], name: str) -> None:
    """Check a schema against the schema of schemas, which takes milliseconds the first time.

    Raises:
        RequestError: It is none; the message begins with `name`.
    """
    text = json.dumps(schema)
    problem = _remembered_problem(text) if len(text) <= _LONGEST_REMEMBERED else _problem(text)
    if problem is not None:
        raise RequestError(f"{name}: {problem}")


def _problem(text: str) -> str | None:
    try:
        jsonschema.Draft202012Validator.check_schema(json.loads(text))
    except jsonschema.SchemaError as error:
        return error.message
    except RecursionError:
        return "is nested too deeply"
    return None


_remembered_problem = lru_cache(_REMEMBERED)(_problem)
