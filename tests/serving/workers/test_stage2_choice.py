"""Which engine a configuration means."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline_ver2.errors import ConfigError
from serving.workers.stage2_choice import build_engine, resolve_engine
from serving.workers.vram_plan import Card
from tests.stage2 import stage2_config


def program(path: Path, status: int) -> str:
    """An interpreter that says whether it has vLLM by its exit status."""
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def chosen(folder: Path, python: str | None) -> str:
    """What `auto` means with this interpreter."""
    return resolve_engine(stage2_config(folder, engine="auto", vllm_python=python).stage2)


def test_auto_takes_vllm_where_its_interpreter_has_it(tmp_path: Path) -> None:
    """Else transformers; the default is this interpreter, which has none."""
    assert chosen(tmp_path, program(tmp_path / "with", 0)) == "vllm"
    assert chosen(tmp_path, program(tmp_path / "without", 1)) == "transformers"
    assert chosen(tmp_path, sys.executable) == "transformers"
    assert chosen(tmp_path, None) == "transformers"


def test_an_interpreter_that_cannot_be_run_is_a_mistake(tmp_path: Path) -> None:
    """The message names the key."""
    with pytest.raises(ConfigError, match=r"stage2\.vllm_python"):
        chosen(tmp_path, str(tmp_path / "nothing"))


@pytest.mark.parametrize("name", ["emulated", "remote", "vllm", "transformers"])
def test_each_engine_is_built_by_its_name(tmp_path: Path, name: str) -> None:
    """Not started, and named as such."""
    settings = stage2_config(tmp_path, engine=name, model="m", remote_url="http://127.0.0.1:1").stage2
    engine = build_engine(settings)
    assert (engine.name, engine.model, engine.labels, engine.alive_at) == (name, "m", None, None)


@pytest.mark.parametrize("name", ["emulated", "vllm", "transformers"])
def test_without_a_model_the_embedded_one_is_meant(tmp_path: Path, name: str) -> None:
    """Its labels are known; the emulated engine stands in for it under its own name."""
    engine = build_engine(stage2_config(tmp_path, engine=name).stage2)
    assert engine.labels == ("stand", "walk", "run", "wave", "jump", "fall")
    assert engine.model == ("emulated" if name == "emulated" else "zroact-demo-answerer")


def test_vllms_build_for_cpus_asks_no_card(tmp_path: Path) -> None:
    """A small GPU beside it stops nothing; the interpreter says what its build is."""
    for status, fits in ((0, True), (1, False)):
        python = program(tmp_path / f"python-{status}", status)
        settings = stage2_config(tmp_path, engine="vllm", model="m", vllm_python=python).stage2
        with nullcontext() if fits else pytest.raises(ConfigError, match="do not fit"):
            assert build_engine(settings, card=lambda: Card("small", 1, 0)).name == "vllm"
