"""Closed-loop load: each client sends its next request when the last one is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipeline_ver2.errors import StageError
from pipeline_ver2.wire import SERVER_TIMING_HEADER, parse_server_timing
from serving.bench.stage1_http import Connection, HttpReply, HttpRequest

RequestMaker = Callable[[], HttpRequest]

REQUEST_TIMEOUT_S = 60.0
WARM_UP_REQUESTS = 2


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What came of a load.

    Attributes:
        clips: How many were answered in the measured time.
        wall_s: From the first request to the last answer.
        latencies_s: Of each request, from its first byte sent to its reply's last byte.
        outside_s: Of each request whose reply tells its time in the engine: the rest of its latency.
        failures: What went wrong; a client stops at its first failure.
    """

    clips: int
    wall_s: float
    latencies_s: tuple[float, ...]
    outside_s: tuple[float, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def clips_per_s(self) -> float:
        """Throughput."""
        return self.clips / self.wall_s

    def failing_too(self, before: LoadFigures) -> LoadFigures:
        """The same with the failures of a load before it."""
        return replace(self, failures=before.failures + self.failures)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "clips": self.clips,
            "wall_s": round(self.wall_s, 4),
            "clips_per_s": round(self.clips_per_s, 3),
            **latency_dict(self.latencies_s),
        }


@dataclass(slots=True)
class _Tally:
    answers: list[HttpReply] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    last_at: float = 0.0


async def load(port: int, make: RequestMaker, *, clips: int, clients: int, seconds: float) -> LoadFigures:
    """Load a server from several clients, each on a connection of its own, after some unmeasured requests of each.

    Args:
        port: Where it listens on this machine.
        make: Gives the next request of any client.
        clips: In one request.
        clients: How many send at the same time.
        seconds: How long new requests are sent; those under way then are waited for and counted.
    """
    warm_up = _Tally()
    await _all_clients(port, make, clients, warm_up, lambda sent: sent < WARM_UP_REQUESTS)
    if warm_up.failures:
        return LoadFigures(0, float("nan"), (), failures=tuple(warm_up.failures))
    tally = _Tally()
    begun = time.perf_counter()
    await _all_clients(port, make, clients, tally, lambda _: time.perf_counter() < begun + seconds)
    return LoadFigures(
        clips=clips * len(tally.answers),
        wall_s=tally.last_at - begun,
        latencies_s=tuple(answer.total_s for answer in tally.answers),
        outside_s=tuple(rest for answer in tally.answers if (rest := _outside_s(answer)) is not None),
        failures=tuple(tally.failures),
    )


async def _all_clients(
    port: int, make: RequestMaker, clients: int, tally: _Tally, go_on: Callable[[int], bool]
) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_client(port, make, tally, go_on))


async def _client(port: int, make: RequestMaker, tally: _Tally, go_on: Callable[[int], bool]) -> None:
    sent = 0
    try:
        connection = await Connection.open(port, timeout_s=REQUEST_TIMEOUT_S)
        try:
            while go_on(sent):
                tally.answers.append(await connection.ask(make()))
                tally.last_at = time.perf_counter()
                sent += 1
        finally:
            connection.close()
    except StageError as error:
        tally.failures.append(f"{error.code}: {error}")


def _outside_s(reply: HttpReply) -> float | None:
    """The part of a request's time that its engine did not work on it; None where the reply does not tell."""
    _, run_s = parse_server_timing(reply.headers.get(SERVER_TIMING_HEADER.lower()))
    return None if run_s is None else reply.total_s - run_s


def latency_dict(latencies_s: Sequence[float]) -> dict[str, float | None]:
    """Median and 99th percentile in milliseconds; null of nothing."""
    if not latencies_s:
        return {"p50_ms": None, "p99_ms": None}
    p50, p99 = (float(value) for value in np.percentile(latencies_s, (50, 99)))
    return {"p50_ms": round(1e3 * p50, 2), "p99_ms": round(1e3 * p99, 2)}
