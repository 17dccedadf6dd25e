"""The README is tried as it is written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.results import Results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PATIENCE_S = 300

# An invisible mark before a block: it is run, and its output must hold the words.
TRIED = re.compile(
    r"^<!-- test gives: (?P<words>.+?) -->\n```(?P<language>bash|python)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Example:
    """A block of the README, and the words its output must hold."""

    language: str
    code: str
    words: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        """How to run it."""
        if self.language == "python":
            return [sys.executable, "-c", self.code]
        return ["bash", "-euo", "pipefail", "-c", self.code]


EXAMPLES = [
    Example(found["language"], found["code"], tuple(shlex.split(found["words"], posix=False)))
    for found in TRIED.finditer(README)
]


def run(command: list[str]) -> str:
    """Run something of the README from the root of the repository; its output."""
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def both_stages() -> Iterator[None]:
    """`zroact up` on the documented ports; if stages run there already, those are used."""
    zroact = Path(sys.executable).with_name("zroact")
    up = subprocess.Popen([zroact, "up"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("ready:")
        yield
    finally:
        up.terminate()
        up.communicate(timeout=PATIENCE_S)


def test_every_mark_is_followed_by_a_block() -> None:
    """No example is left out because of how it is written."""
    assert README.count("<!-- test") == len(EXAMPLES) > 10


def test_nothing_is_left_to_fill_in() -> None:
    """Figures are in their places."""
    assert re.findall(r"<!-- FILL.*?-->", README) == []


def test_files_and_anchors_it_links_to_exist() -> None:
    """Links into the repository lead somewhere."""
    links = re.findall(r"\]\(([^)h#][^)]*)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_commands_it_names_exist() -> None:
    """Targets of make and subcommands of zroact."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)$", README, re.MULTILINE)) <= targets
    told = run([str(Path(sys.executable).with_name("zroact")), "--help"])
    assert set(re.findall(r"zroact ([a-z0-9][a-z0-9-]*)", README)) <= set(told.split())


def test_the_table_of_keys_is_complete() -> None:
    """Every key of the configuration is explained, and none that does not exist."""
    table = README.partition("## Configuration")[2].partition("\n## ")[0]
    rows = "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([a-z0-9_.]+)`", rows)) == set(_keys(Config().model_dump()))


def _keys(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def test_the_fields_of_the_results_are_complete() -> None:
    """The table of results names what results.json holds."""
    table = README.partition("## Results")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z_0-9]+)`", table))
    assert {name for name in Results.model_fields if name not in {"schema_version", "source"}} <= named


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.code.split("\n")[0][:60])
@pytest.mark.usefixtures("both_stages")
def test_an_example(example: Example) -> None:
    """It runs as written, in the order of the README, and its output holds what the README says."""
    told = "".join(run(example.command).split())
    assert [word for word in example.words if word not in told] == []


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.usefixtures("both_stages")
def test_the_demo() -> None:
    """`make demo` leaves the files that the README lists, with results of both stages."""
    run(["make", "demo"])
    listed = re.findall(r"`([\w.]+\.(?:json|jsonl|svg|mp4))`", README.partition("writes into `out/demo`")[2][:800])
    assert len(listed) == 6
    assert [name for name in listed if not (ROOT / "out/demo" / name).stat().st_size] == []
    results = json.loads((ROOT / "out/demo/results.json").read_text())
    assert (results["state"], results["counts"]["keyframes"], results["counts"]["slots"]) == ("succeeded", 38, 13)
    assert any(keyframe["detections"] for keyframe in results["keyframes"])
    assert all(slot["answer"]["action"] for slot in results["slots"])
