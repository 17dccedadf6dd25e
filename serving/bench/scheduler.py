"""`zroact bench scheduler`: what the scheduler makes of an overloaded hour, and of engines it does not know."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from serving.bench.bars import Bar
from serving.bench.simulation import Latency, Simulation, keep_sending, send_every
from serving.workers.limits import AdaptiveLimit, FixedLimit, Limit
from serving.workers.scheduler import SchedulerCore

HOUR_S = 3600.0
SERVICE_S = 2.07
DEADLINE_S = 5.0
JITTER = 0.2
LOAD = 1.5
LIMIT = 2
MIN_SHARE = 0.1
MOST_AT_ONCE = 24

_MAX_QUEUE = 64
_CLIENTS = 32
_SWEEP_S = 300.0
_SEED = 7


@dataclass(frozen=True, slots=True)
class HourFigures:
    """An hour of live requests at 1.5 times what the engine can do, beside a file job that always wants more."""

    jitter: float
    live_sent: int
    live_on_time: int
    live_late: int
    live_shed: int
    file_answered: int
    capacity: float

    @property
    def useful_share(self) -> float:
        """On-time live and file answers, of what the engine can do."""
        return (self.live_on_time + self.file_answered) / self.capacity

    @property
    def late_share(self) -> float:
        """Late ones of the live requests that were answered."""
        answered = self.live_on_time + self.live_late
        return self.live_late / answered if answered else float("nan")

    @property
    def file_share(self) -> float:
        """File answers of all answers."""
        return self.file_answered / (self.file_answered + self.live_on_time + self.live_late)


@dataclass(frozen=True, slots=True)
class LimitFigures:
    """An hour of a closed loop of clients with an adaptive limit, beside the best fixed one."""

    engine: str
    jitter: float
    throughput: float
    best_fixed_throughput: float
    best_fixed_limit: int
    latency_p50_s: float
    limit_at_end: int
    out_of_memory: int

    @property
    def of_best(self) -> float:
        """Throughput, of the best fixed limit's."""
        return self.throughput / self.best_fixed_throughput


def flat_then_linear(knee: int) -> Latency:
    """An engine that works on `knee` at once: more of them share its speed."""
    return lambda running: SERVICE_S * max(1.0, running / knee)


def flat_until_full(level: int) -> Latency:
    """An engine whose memory does not hold `level` requests."""
    return lambda running: SERVICE_S if running < level else None


ENGINES: Mapping[str, Latency] = {
    "flat to 4": flat_then_linear(4),
    "flat to 16": flat_then_linear(16),
    "out of memory at 6": flat_until_full(6),
}


def measure(tell: Callable[[str], None]) -> tuple[list[HourFigures], list[LimitFigures]]:
    """All of it, with equal and with varying service times; `tell` is told what is simulated next."""
    hours, limits = [], []
    for jitter in (0.0, JITTER):
        tell(f"an overloaded hour, service times ±{jitter:.0%}")
        hours.append(overloaded_hour(jitter))
    for engine in ENGINES:
        tell(f"fixed limits of 1 to {MOST_AT_ONCE}, engine {engine}")
        best = best_fixed(engine)
        for jitter in (0.0, JITTER):
            tell(f"an hour with the adaptive limit, engine {engine}, service times ±{jitter:.0%}")
            limits.append(adaptive_hour(engine, jitter, best))
    return hours, limits


def overloaded_hour(jitter: float, *, window: int = LIMIT, min_share: float = MIN_SHARE) -> HourFigures:
    """Simulate it.

    Args:
        jitter: Service times are even within this share around 2.07 s; 0 = all equal.
        window: Requests the file job keeps outstanding.
        min_share: The share of work without a deadline.
    """
    core = SchedulerCore(FixedLimit(LIMIT), _MAX_QUEUE, min_share)
    simulation = Simulation(core, jittered(lambda _running: SERVICE_S, jitter))
    send_every(simulation, "live", SERVICE_S / LIMIT / LOAD, DEADLINE_S)
    keep_sending(simulation, "file", window)
    simulation.run(HOUR_S)
    live = [request for request in simulation.requests if request.client == "live"]
    answered = [request for request in live if request.outcome == "answered"]
    late = sum(request.late for request in answered)
    return HourFigures(
        jitter=jitter,
        live_sent=len(live),
        live_on_time=len(answered) - late,
        live_late=late,
        live_shed=sum(request.outcome == "shed" for request in live),
        file_answered=sum(r.outcome == "answered" for r in simulation.requests if r.client == "file"),
        capacity=LIMIT * HOUR_S / SERVICE_S,
    )


def adaptive_hour(engine: str, jitter: float, best: tuple[int, float]) -> LimitFigures:
    """Simulate a limit of 1 to 24 before an engine of `ENGINES`; `best` is from `best_fixed`."""
    simulation = _closed_loop(AdaptiveLimit(1, MOST_AT_ONCE), jittered(ENGINES[engine], jitter), HOUR_S)
    latencies = [request.latency_s for request in simulation.requests if request.outcome == "answered"]
    return LimitFigures(
        engine=engine,
        jitter=jitter,
        throughput=len(latencies) / HOUR_S,
        best_fixed_throughput=best[1],
        best_fixed_limit=best[0],
        latency_p50_s=statistics.median(latencies),
        limit_at_end=simulation.core.stats().limit,
        out_of_memory=simulation.out_of_memory,
    )


def best_fixed(engine: str, limits: Sequence[int] = range(1, MOST_AT_ONCE + 1)) -> tuple[int, float]:
    """`(limit, answers a second)` of the best of these fixed limits that never runs out of memory."""
    reached: dict[int, float] = {}
    for limit in limits:
        simulation = _closed_loop(FixedLimit(limit), ENGINES[engine], _SWEEP_S)
        if not simulation.out_of_memory:
            reached[limit] = sum(request.outcome == "answered" for request in simulation.requests) / _SWEEP_S
    return max(reached.items(), key=lambda item: item[1])


def jittered(latency: Latency, jitter: float) -> Latency:
    """The same engine with service times that vary evenly by this share up and down."""
    chance = random.Random(_SEED)  # noqa: S311 - a simulation

    def varied(running: int) -> float | None:
        seconds = latency(running)
        return None if seconds is None else seconds * (1 + chance.uniform(-jitter, jitter))

    return varied


def _closed_loop(limit: Limit, latency: Latency, until: float) -> Simulation:
    simulation = Simulation(SchedulerCore(limit, _MAX_QUEUE, MIN_SHARE), latency)
    for client in range(_CLIENTS):
        keep_sending(simulation, f"client {client}", 1)
    simulation.run(until)
    return simulation


def bars_of(hours: Sequence[HourFigures], limits: Sequence[LimitFigures]) -> list[Bar]:
    """What both must reach."""
    bars = []
    for hour in hours:
        said = f"overloaded hour, service times ±{hour.jitter:.0%}"
        bars += [
            Bar(f"{said}: late of the live answers", hour.late_share, "<=", 0.01 if hour.jitter else 0.0),
            Bar(f"{said}: on-time live and file answers, of what is possible", hour.useful_share, ">=", 0.95),
            Bar(f"{said}: share of the file job", hour.file_share, ">=", MIN_SHARE - 0.001),
        ]
    for figures in limits:
        said = f"adaptive limit, engine {figures.engine}, ±{figures.jitter:.0%}"
        bars += [
            Bar(f"{said}: throughput of the best fixed limit's", figures.of_best, ">=", 0.9),
            Bar(f"{said}: median latency of its floor", figures.latency_p50_s / SERVICE_S, "<=", 1.3),
            Bar(f"{said}: times out of memory", figures.out_of_memory, "<=", 1),
        ]
    return bars


def build_report(
    machine: Mapping[str, Any], hours: Sequence[HourFigures], limits: Sequence[LimitFigures], bars: Sequence[Bar]
) -> dict[str, Any]:
    """The JSON object of the command."""
    return {
        "benchmark": "scheduler",
        "machine": dict(machine),
        "workload": {
            "service_s": SERVICE_S,
            "limit": LIMIT,
            "deadline_s": DEADLINE_S,
            "load": LOAD,
            "min_share": MIN_SHARE,
            "adaptive": {"min": 1, "max": MOST_AT_ONCE, "clients": _CLIENTS},
        },
        "overloaded_hour": [asdict(hour) for hour in hours],
        "adaptive_limit": [asdict(figures) for figures in limits],
        "bars": [bar.as_dict() for bar in bars],
    }
