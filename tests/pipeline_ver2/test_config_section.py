"""What every section of the configuration is."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from pipeline_ver2.config_section import Section


class Kitchen(Section):
    """A section."""

    model_path: str = "here"
    size: float = 1


def test_a_section_knows_its_keys_and_stays_as_it_is() -> None:
    """An unknown key is an error, and so is a change."""
    with pytest.raises(ValidationError, match="Extra inputs"):
        Kitchen.model_validate({"path": "there"})
    with pytest.raises(ValidationError, match="frozen"):
        Kitchen().model_path = "there"  # type: ignore[misc]


@pytest.mark.parametrize("size", ["NaN", "Infinity", "1e999"])
def test_numbers_are_finite(size: str) -> None:
    """Python reads JSON that has others, and no comparison finds those."""
    with pytest.raises(ValidationError, match="size"):
        Kitchen.model_validate(json.loads(f'{{"size": {size}}}'))
