"""Class names from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ver2.errors import ConfigError
from pipeline_ver2.labels import read_labels


@pytest.mark.parametrize(
    "text", ["sit\nstand up\n", "\n sit \n\nstand up", '["sit", "stand up"]', ' ["sit",\n"stand up"]']
)
def test_names_come_one_a_line_or_as_json(tmp_path: Path, text: str) -> None:
    """Blank lines and blanks around a name do not count; indices begin at 0 or at 1."""
    (tmp_path / "labels").write_text(text, encoding="utf-8")
    assert read_labels(tmp_path / "labels", "--labels") == ("sit", "stand up")


@pytest.mark.fault("A2")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "at least one name"),
        (b"sit\nsit\n", "none twice"),
        (b"[]", "at least one name"),
        (b'["sit", 3]', "a list of names"),
        (b'["sit", ""]', "a list of names"),
        (b'["sit"', "not valid JSON"),
        (b'{"0": "sit", "2": "throw"}', "index 1 is missing"),
        (b"{}", "at least one name"),
        (b"\xff\xfe", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_what_holds_no_names_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    """The message names the key, the file and what is wrong."""
    file = tmp_path / "labels"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_labels(file, "stage1.labels_path")
    assert str(caught.value).startswith(f"stage1.labels_path: {file}")
