"""Bars and report of the Stage 1 benchmark, from figures of a test's choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from serving.bench.bars import passed
from serving.bench.machine import describe_machine
from serving.bench.stage1_load import LoadFigures
from serving.bench.stage1_report import BARE, DAEMON, Round, Stage1Figures, bars_of, build_report, outside_ms, ratio
from serving.bench.stage1_servers import PEERS
from serving.bench.stage1_soak import SoakFigures
from serving.bench.tables import stage1_table

SPEEDS = {BARE: 100.0, DAEMON: 90.0} | {peer.name: 40.0 if peer.way == "numpy" else 80.0 for peer in PEERS}


def one_load(clips_per_s: float) -> LoadFigures:
    """A load of two seconds with that throughput."""
    return LoadFigures(int(2 * clips_per_s), 2.0, (0.1, 0.2), (0.004, 0.005))


def one_round(**changed: float) -> Round:
    """A round in which the daemon reaches every bar; keywords are other speeds."""
    return {name: one_load(speed) for name, speed in (SPEEDS | changed).items()}


GOOD = Stage1Figures(
    batches=(one_round(), one_round(), one_round()),
    singles=(one_round(),),
    one_client=one_load(70),
    soak=SoakFigures(16, one_load(90), (500.0,) * 10),
)


def missed(figures: Stage1Figures) -> list[str]:
    """Names of the bars that are missed."""
    return [bar.name for bar in bars_of(figures) if not bar.ok]


def test_a_daemon_that_is_fast_enough() -> None:
    """All bars of the benchmark are there, and reached."""
    assert passed(bars_of(GOOD))
    assert len(bars_of(GOOD)) == 1 + len(PEERS) + 1 + 2
    assert [bar.target for bar in bars_of(GOOD)[:5]] == [0.85, 1.8, 1.0, 1.8, 1.0]


def test_the_median_of_the_rounds_counts() -> None:
    """One round in which the daemon was slow is no miss, two are."""
    slow = one_round(**{DAEMON: 84.0})
    assert missed(replace(GOOD, batches=(one_round(), slow, one_round()))) == []
    assert missed(replace(GOOD, batches=(slow, slow, one_round()))) == ["daemon / bare loop: median of the rounds"]


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that is twice as fast in one round changes nothing."""
    doubled = {name: one_load(2 * speed) for name, speed in SPEEDS.items()}
    assert ratio((one_round(), doubled), BARE) == pytest.approx(0.9)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_that_is_faster_than_its_bar(peer: object) -> None:
    """Each has a bar of its own."""
    name = next(each.name for each in PEERS if each is peer)
    figures = replace(GOOD, batches=(one_round(**{name: 95.0}),))
    assert missed(figures) == [f"daemon / {name}: median of the rounds"]


def test_time_outside_inference() -> None:
    """The median in milliseconds; without any the bar is missed."""
    assert outside_ms(GOOD.one_client) == pytest.approx(4.5)
    slow = replace(GOOD.one_client, outside_s=(0.004, 0.006, 0.007))
    assert missed(replace(GOOD, one_client=slow)) == ["one client: ms outside inference, p50"]
    assert missed(replace(GOOD, one_client=replace(slow, outside_s=()))) == ["one client: ms outside inference, p50"]


def test_a_soak_that_fails_or_grows() -> None:
    """A failed request misses a bar, growing memory another; no soak, no bars."""
    failing = SoakFigures(16, replace(one_load(90), failures=("late",)), (500.0,) * 14 + (600.0,))
    assert missed(replace(GOOD, soak=failing)) == ["soak: failed requests"]
    growing = SoakFigures(16, one_load(90), (500.0, 500.0, 530.0, 530.0, 530.0))
    assert missed(replace(GOOD, soak=growing)) == ["soak: growth of memory, %"]
    assert len(bars_of(replace(GOOD, soak=None))) == len(bars_of(GOOD)) - 2


def test_the_report_is_json_and_a_table() -> None:
    """It names every server with its rounds, and the table shows them."""
    report = build_report(describe_machine(["numpy"]), Path("clip.mp4"), 2, GOOD, bars_of(GOOD))
    told = json.loads(json.dumps(report))
    assert told["batches"]["orders"] == [list(SPEEDS)] * 3
    servers = told["batches"]["servers"]
    assert set(servers) == set(SPEEDS)
    assert servers[BARE]["daemon_ratio"] == 0.9
    assert servers[DAEMON]["clips_per_s"] == 90
    assert [each["clips"] for each in servers[DAEMON]["rounds"]] == [180] * 3
    assert told["one_client"]["outside_inference"] == {"p50_ms": 4.5, "p99_ms": 4.99}
    assert told["soak"]["memory_growth_percent"] == 0
    console = Console(width=200)
    with console.capture() as shown:
        console.print(stage1_table(report))
    assert [name for name in SPEEDS if name not in shown.get()] == []
