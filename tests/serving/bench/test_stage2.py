"""The Stage 2 benchmark: its arithmetic, and a short run with a stand-in for vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.errors import ConfigError, StageError
from serving.bench.daemons import stage2_config
from serving.bench.stage2 import (
    CONCURRENCIES,
    LAPS,
    Pair,
    Run,
    Stage2Figures,
    bars_of,
    build_report,
    find_vllm,
    make_questions,
    measure,
)
from serving.bench.tables import stage2_table
from tests.fake_vllm import write_executable


def run_of(latency_ms: float, per_s: float, requests: int = 4) -> Run:
    """Requests that all took the same time."""
    return Run((latency_ms / 1e3,) * requests, requests / per_s, requests)


def figures_of(*pairs: Pair) -> Stage2Figures:
    """The same pairs at each concurrency."""
    return Stage2Figures("a model", "0.1", dict.fromkeys(CONCURRENCIES, pairs))


PAIRS = (
    Pair("daemon", run_of(104, 9.6), run_of(100, 10)),
    Pair("direct", run_of(107, 9.9), run_of(100, 10)),
    Pair("daemon", run_of(90, 5), run_of(100, 10)),
)


def test_the_bars_are_medians_of_the_pairs() -> None:
    """Ratios 0.96, 0.99 and 0.5; 4, 7 and -10 ms added."""
    ratio, added = bars_of(figures_of(*PAIRS))
    assert [ratio.value, added.value] == pytest.approx([0.96, 4])
    assert (ratio.op, ratio.target, ratio.ok) == (">=", 0.95, True)
    assert (added.op, added.target, added.ok) == ("<=", 5, True)


@pytest.mark.parametrize(
    ("pair", "ok"), [(PAIRS[0], [True, True]), (PAIRS[1], [True, False]), (PAIRS[2], [False, True])]
)
def test_the_bars_can_be_missed(pair: Pair, ok: list[bool]) -> None:
    """Too slow at four, too much added at one."""
    assert [bar.ok for bar in bars_of(figures_of(pair))] == ok


def test_each_bar_looks_at_its_own_concurrency() -> None:
    """The ratio at 4, the added latency at 1."""
    good, bad = Pair("daemon", run_of(100, 10), run_of(100, 10)), Pair("daemon", run_of(200, 5), run_of(100, 10))
    only = {at_once: (good if at_once in {1, 4} else bad,) for at_once in CONCURRENCIES}
    assert all(bar.ok for bar in bars_of(Stage2Figures("a model", "0.1", only)))
    assert not any(bar.ok for bar in bars_of(Stage2Figures("a model", "0.1", {**only, 1: (bad,), 4: (bad,)})))


def test_the_report_and_its_table() -> None:
    """Percentiles of all latencies, the median run's throughput, the daemon against itself; plain JSON."""
    report = build_report({"cpu": "c", "cores": 1, "memory_gb": 1, "load_average": [0]}, 4, figures_of(*PAIRS), [])
    row: dict[str, Any] = json.loads(json.dumps(report))["rows"][0]
    assert row["daemon"] == {"per_s": 9.6, "p50_ms": 104, "p99_ms": 107, "valid": 12, "answers": 12}
    assert (row["ratio"], row["added_p50_ms"], row["daemon_over_daemon_at_1"]) == (0.96, 4, 1)
    assert [pair["first"] for pair in row["pairs"]] == ["daemon", "direct", "daemon"]
    assert report["engines"] == {"stage2": "vllm 0.1"}
    assert stage2_table(report).row_count == len(CONCURRENCIES)


def test_added_latency_compares_each_request_with_itself() -> None:
    """Three requests of different lengths, 2, 3 and 40 ms longer: 3 in the median, whatever the medians of both are."""
    pair = Pair("daemon", Run((0.082, 0.143, 0.240), 1, 3), Run((0.080, 0.140, 0.200), 1, 3))
    assert pair.added_ms == pytest.approx(3)


def test_laps_make_a_run() -> None:
    """Latencies side by side, times and valid answers added up."""
    run = Run.of([Run((0.1, 0.2), 0.25, 2), Run((0.3,), 0.75, 0)])
    assert run == Run((0.1, 0.2, 0.3), 1.0, 2)
    assert run.per_s == pytest.approx(3)


def test_the_questions_are_slots_with_three_images() -> None:
    """Always the same ones."""
    first, second = make_questions(Config()), make_questions(Config())
    assert first == second
    assert {len(question.images) for question in first} == {3}
    assert len({question.images for question in first}) == len(first) == 13


def test_an_interpreter_without_vllm_is_one_clear_line(tmp_path: Path) -> None:
    """It is named, and how to get one."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(ConfigError, match=rf"--vllm-python: {program} has no vLLM; `make vllm`"):
        find_vllm(program)
    program.write_text("#!/bin/sh\nexit 0\n")
    assert find_vllm(program) == str(program)


def with_fake_vllm(folder: Path, *arguments: str) -> Config:
    """The benchmark's configuration with a stand-in for vLLM."""
    config = stage2_config(folder, str(write_executable(folder / "fake-python")))
    own = {"vllm_args": ("--notes", str(folder), *arguments), "start_timeout_s": 60}
    return config.model_copy(update={"stage2": config.stage2.model_copy(update=own)})


def children(folder: Path) -> list[Path]:
    """One note of each stand-in that was started."""
    return list(folder.glob("*.json"))


@pytest.mark.slow
async def test_a_short_run(tmp_path: Path) -> None:
    """One daemon and one child; each pair begins with the other; what the stand-in answers is counted as invalid."""
    told: list[str] = []
    figures = await measure(with_fake_vllm(tmp_path), 2, 3, told.append)
    assert list(figures.pairs) == [1, 2, 4, 8]
    for at_once, pairs in figures.pairs.items():
        assert [pair.first for pair in pairs] == ["daemon", "direct"]
        for run in (run for pair in pairs for run in (pair.daemon, pair.direct)):
            assert len(run.latencies_s) == 3 * LAPS[at_once]
            assert (run.valid, run.wall_s > 0, min(run.latencies_s) > 0) == (0, True, True)
    assert (figures.model, figures.version) == ("zroact-demo-answerer", "a stand-in")
    assert len(children(tmp_path)) == 1
    assert told[-1] == "8 at once"


@pytest.mark.slow
async def test_without_vllm_behind_it_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    """Another engine names no child."""
    config = with_fake_vllm(tmp_path)
    emulated = config.stage2.model_copy(update={"engine": "emulated"})
    with pytest.raises(StageError, match="names no vLLM behind it: it is another engine"):
        await measure(config.model_copy(update={"stage2": emulated}), 1, 1, lambda _: None)
