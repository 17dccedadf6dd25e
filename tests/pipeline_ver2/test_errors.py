"""The error tree, as its docstring draws it and as the wire sees it."""

from __future__ import annotations

import inspect
import re

import pytest

from pipeline_ver2 import errors
from pipeline_ver2.errors import AnswerError, StageError, ZroactError


def _tree(kind: type[ZroactError] = ZroactError) -> list[type[ZroactError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _tree(child))]


KINDS = [kind for kind in _tree() if kind.__module__ == errors.__name__]


def test_the_drawing_is_the_tree() -> None:
    """Every class stands in the module's drawing under its parent, and the drawing names no other."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)(?=\s|$)", line)
        if found is None or not (line[0] in "├└│ " or line == "ZroactError"):
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        drawn[found[2]] = path[depth - 1] if depth else ""
    real = {kind.__name__: kind.__bases__[0].__name__ if kind is not ZroactError else "" for kind in KINDS}
    assert drawn == real


def test_codes_are_unique() -> None:
    """A client can tell every kind by its code."""
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_fit_for_the_wire(kind: type[ZroactError]) -> None:
    """Each has an error status, a readable code and a docstring; what may be retried is never the client's fault."""
    assert 400 <= kind.http_status < 600
    assert re.fullmatch(r"[a-z][a-z_]*", kind.code)
    assert inspect.getdoc(kind)
    if kind.retryable:
        assert kind.http_status in {429, 502, 503, 504}
    assert str(kind("what happened")) == "what happened"


def test_stage_errors_carry_their_hint() -> None:
    """A stage may say when to come back; without that the hint is None."""
    assert StageError("busy", retry_after_s=2.5).retry_after_s == 2.5
    assert StageError("busy").retry_after_s is None


def test_an_invalid_answer_keeps_its_text() -> None:
    """The raw text of an answer that does not count is not lost."""
    assert AnswerError("cut off", '{"action": "ru').raw_text == '{"action": "ru'
    assert AnswerError("nothing").raw_text is None
