"""What the Stage 1 benchmark makes of its figures: bars and a report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.bench.bars import Bar
from serving.bench.peers.stage1_model import Way
from serving.bench.stage1_load import LoadFigures, latency_dict
from serving.bench.stage1_servers import PEERS
from serving.bench.stage1_soak import SoakFigures

PACKAGES = ("fastapi", "litserve", "mosec", "numpy", "onnxruntime", "uvicorn")
BARE, DAEMON = "bare loop", "daemon"
CLIPS, CLIENTS, SOAK_CLIENTS = 4, 4, 16

Round = Mapping[str, LoadFigures]

_OF_THE_BARE_LOOP = 0.85
_OF_A_PEER: Mapping[Way, float] = {"numpy": 1.8, "session": 1.0}
_OUTSIDE_MS = 5.0
_GROWTH_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class Stage1Figures:
    """What was measured.

    Attributes:
        batches: Rounds with requests of `CLIPS` clips from `CLIENTS` clients; each holds what was measured in it by
            name, in the order of measuring.
        singles: The same with requests of one clip.
        one_client: The daemon with one client and requests of `CLIPS` clips.
        soak: The daemon with `SOAK_CLIENTS` clients, if it was asked for.
    """

    batches: tuple[Round, ...]
    singles: tuple[Round, ...]
    one_client: LoadFigures
    soak: SoakFigures | None


def ratio(rounds: Sequence[Round], other: str) -> float:
    """Median over the rounds of the daemon's clips per second divided by the other's in the same round."""
    return statistics.median(each[DAEMON].clips_per_s / each[other].clips_per_s for each in rounds)


def bars_of(figures: Stage1Figures) -> list[Bar]:
    """The bars."""
    rounds = figures.batches
    targets = {BARE: _OF_THE_BARE_LOOP} | {peer.name: _OF_A_PEER[peer.way] for peer in PEERS}
    bars = [
        Bar(f"{DAEMON} / {name}: median of the rounds", ratio(rounds, name), ">=", target)
        for name, target in targets.items()
        if name in rounds[0]
    ]
    bars.append(Bar("one client: ms outside inference, p50", outside_ms(figures.one_client), "<=", _OUTSIDE_MS))
    if figures.soak is not None:
        bars.append(Bar("soak: failed requests", len(figures.soak.load.failures), "==", 0))
        bars.append(Bar("soak: growth of memory, %", figures.soak.growth_percent, "<=", _GROWTH_PERCENT))
    return bars


def outside_ms(figures: LoadFigures) -> float:
    """Median time of a request that its engine did not work on it, in milliseconds; NaN if no reply told."""
    return 1e3 * statistics.median(figures.outside_s or (float("nan"),))


def build_report(
    machine: dict[str, Any], clip: Path, threads: int, figures: Stage1Figures, bars: Sequence[Bar]
) -> dict[str, Any]:
    """The JSON report."""
    one_client = {**figures.one_client.as_dict(), "outside_inference": latency_dict(figures.one_client.outside_s)}
    return {
        "bench": "stage1",
        "engines": {"stage1": "onnxruntime"},
        "machine": machine,
        "workload": {"clip": clip.name, "clients": CLIENTS, "engine_threads": threads},
        "batches": _rounds_dict(figures.batches, CLIPS),
        "singles": _rounds_dict(figures.singles, 1),
        "one_client": one_client,
        "soak": None if figures.soak is None else figures.soak.as_dict(),
        "bars": [bar.as_dict() for bar in bars],
    }


def _rounds_dict(rounds: Sequence[Round], clips: int) -> dict[str, Any]:
    """One entry per server: medians of its rounds, percentiles over all its requests, and its rounds."""
    names = [name for name in (DAEMON, BARE, *(peer.name for peer in PEERS)) if rounds and name in rounds[0]]
    return {
        "clips_per_request": clips,
        "orders": [list(each) for each in rounds],
        "servers": {name: _server_dict(rounds, name) for name in names},
    }


def _server_dict(rounds: Sequence[Round], name: str) -> dict[str, Any]:
    own = [each[name] for each in rounds]
    return {
        "clips_per_s": round(statistics.median(figures.clips_per_s for figures in own), 3),
        "daemon_ratio": round(ratio(rounds, name), 4),
        **latency_dict([latency for figures in own for latency in figures.latencies_s]),
        "rounds": [figures.as_dict() for figures in own],
    }
