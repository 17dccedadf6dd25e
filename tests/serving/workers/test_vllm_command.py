"""What vLLM's server is started with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from serving.workers.stage2_engine import DEMO_MODEL_FOLDER
from serving.workers.vllm_command import is_cpu_build, server_command, server_variables
from tests.fake_vllm import write_executable
from tests.stage2 import stage2_config


def options(folder: Path, *, on_cpu: bool = False, **stage2: object) -> dict[str, str]:
    """The options of a configuration; of two with one name the last, as vLLM takes them."""
    settings = stage2_config(folder, **stage2).stage2
    command = server_command("python", "name", settings, on_cpu=on_cpu)
    assert command[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    found: dict[str, str] = {}
    name = ""
    for argument in command[3:]:
        if argument.startswith("--"):
            name, argument = argument, ""
        found[name] = argument
    return found


def test_what_every_server_gets(tmp_path: Path) -> None:
    """The embedded model unless another is named, our bounds, no cache of pictures."""
    given = options(tmp_path, limit={"min": 2, "max": 6})
    assert given["--model"] == str(DEMO_MODEL_FOLDER)
    assert given["--served-model-name"] == "name"
    assert given["--max-num-seqs"] == "7"
    assert given["--mm-processor-cache-gb"] == "0"
    assert given["--max-model-len"] == "auto"
    assert given["--limit-mm-per-prompt"] == '{"image": 16, "video": 0}'
    assert not {"--enforce-eager", "--kv-cache-memory-bytes", "--gpu-memory-utilization"} & set(given)
    assert options(tmp_path, model="/models/own")["--model"] == "/models/own"


def test_on_a_cpu_its_cache_is_bounded(tmp_path: Path) -> None:
    """By the budget, else to a gigabyte; vLLM itself would take nearly all memory."""
    assert options(tmp_path, on_cpu=True)["--kv-cache-memory-bytes"] == str(2**30)
    budget = options(tmp_path, on_cpu=True, memory_budget_gb=0.5)
    assert budget["--kv-cache-memory-bytes"] == str(2**29)
    assert "--enforce-eager" in budget


def test_on_a_cpu_one_core_is_left_and_none_is_polled_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model computes in the engine's process, on as many threads as are asked for, else on all cores but one."""
    monkeypatch.setattr("serving.workers.vllm_command.usable_cpus", lambda: 8)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    default = server_variables(stage2_config(tmp_path, threads=None).stage2, on_cpu=True)
    assert default == {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "7"}
    asked = server_variables(stage2_config(tmp_path, threads=3).stage2, on_cpu=True)
    assert asked["OMP_NUM_THREADS"] == "3"
    monkeypatch.setattr("serving.workers.vllm_command.usable_cpus", lambda: 1)
    assert server_variables(stage2_config(tmp_path, threads=None).stage2, on_cpu=True)["OMP_NUM_THREADS"] == "1"
    assert server_variables(stage2_config(tmp_path).stage2, on_cpu=False) == {}


def test_who_binds_threads_to_cores_gets_vllms_own_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are bound in a process of their own only."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-30")
    assert server_variables(stage2_config(tmp_path).stage2, on_cpu=True) == {}


def test_the_users_options_win(tmp_path: Path) -> None:
    """They come last."""
    given = options(tmp_path, on_cpu=True, vllm_args=["--max-model-len", "2048", "--kv-cache-memory-bytes", "9"])
    assert (given["--max-model-len"], given["--kv-cache-memory-bytes"]) == ("2048", "9")


def test_the_cpu_build_is_known_by_its_package(tmp_path: Path) -> None:
    """The interpreter is asked."""
    program = write_executable(tmp_path / "fake-python")
    assert not is_cpu_build(str(program))
    (tmp_path / "cpu-build").touch()
    assert is_cpu_build(str(program))


@pytest.mark.parametrize("python", ["/no/python", sys.executable])
def test_an_interpreter_without_vllm_has_no_cpu_build(python: str) -> None:
    """Nor has one that cannot be run."""
    assert not is_cpu_build(python)
