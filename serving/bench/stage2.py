"""`zroact bench stage2`: the Stage 2 daemon against the very vLLM behind it, asked directly in turns with it."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import numpy as np

from pipeline_ver2.config import Config, Stage2Config
from pipeline_ver2.errors import AnswerError, ConfigError, StageError
from pipeline_ver2.prompts import Question, build_request, read_answer
from pipeline_ver2.supervisor import Supervisor
from pipeline_ver2.wire import IDEMPOTENCY_HEADER
from serving.bench.bars import Bar
from serving.bench.daemons import STAGE2_LIMIT
from serving.bench.stage1_http import Connection, HttpReply, HttpRequest
from serving.demo.answerer_slots import question_of, sample_slot
from serving.demo.seeds import DEMO, generator
from serving.workers.stage2_choice import resolve_engine

# How many laps a run has at each concurrency. The speed of one lap is off by an eighth: by the machine, and by whether
# the clients happen to come all at once or one after the other. Where there is a bar it takes many to see a hundredth.
LAPS: Mapping[int, int] = {1: 4, 2: 1, STAGE2_LIMIT: 24, 8: 1}
CONCURRENCIES = tuple(LAPS)
PACKAGES = ("aiohttp", "fastapi", "uvicorn")
VENV_PYTHON = Path(".venv-vllm/bin/python")

_SIZE = (360, 640)
_QUESTIONS = 13
_PATH = "/v1/chat/completions"

Side = Literal["daemon", "direct"]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """Requests from so many clients at once: their latencies, the time of all, and how many answers were valid.

    Latencies are in the order of the requests. The time is that of its laps together; between them it was the other
    side's turn.
    """

    latencies_s: tuple[float, ...]
    wall_s: float
    valid: int

    @classmethod
    def of(cls, laps: Sequence[Run]) -> Run:
        """All laps as one run."""
        latencies = tuple(latency_s for lap in laps for latency_s in lap.latencies_s)
        return cls(latencies, sum(lap.wall_s for lap in laps), sum(lap.valid for lap in laps))

    @property
    def per_s(self) -> float:
        """Requests per second."""
        return len(self.latencies_s) / self.wall_s


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides, lap by lap in turns; `first` is the side that began."""

    first: Side
    daemon: Run
    direct: Run

    @property
    def ratio(self) -> float:
        """Requests per second, daemon / direct."""
        return self.daemon.per_s / self.direct.per_s

    @property
    def added_ms(self) -> float:
        """What the daemon adds to a request, in the median over all: each is compared with itself on the other side.

        The requests are of different lengths, and the medians of both sides may lie at different ones of them.
        """
        both = zip(self.daemon.latencies_s, self.direct.latencies_s, strict=True)
        return 1e3 * statistics.median(daemon_s - direct_s for daemon_s, direct_s in both)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        sides = {
            f"{side}_per_s": round(run.per_s, 3) for side, run in (("daemon", self.daemon), ("direct", self.direct))
        }
        return {"first": self.first, **sides, "ratio": round(self.ratio, 4), "added_p50_ms": round(self.added_ms, 2)}


@dataclass(frozen=True, slots=True)
class Stage2Figures:
    """The pairs by concurrency, and whose answers they are: of which model, from which version of vLLM."""

    model: str
    version: str
    pairs: Mapping[int, Sequence[Pair]]


def find_vllm(python: Path | None) -> str | None:
    """The interpreter that has vLLM: the given one, else the one of `.venv-vllm` here, else this one (None).

    Raises:
        ConfigError: It has none.
    """
    named = python or (VENV_PYTHON if VENV_PYTHON.is_file() else None)
    # Not resolved: a link of a virtual environment leads out of it.
    chosen = None if named is None else str(named.absolute())
    if resolve_engine(Stage2Config(vllm_python=chosen)) != "vllm":
        raise ConfigError(
            f"--vllm-python: {chosen or 'this interpreter'} has no vLLM; `make vllm` makes one for CPUs in .venv-vllm"
        )
    return chosen


async def measure(config: Config, pairs: int, requests: int, tell: Tell) -> Stage2Figures:
    """Pairs of runs of daemon and child at each concurrency, after a warm-up of both.

    Args:
        config: Where the daemon is started; its engine is vllm.
        pairs: How many at each concurrency.
        requests: How many in each lap of a run.
        tell: Is told of progress.

    Raises:
        StageError: The daemon or its child failed, or refused a request.
    """
    questions = await asyncio.to_thread(make_questions, config)
    async with Supervisor(config, stages=("stage2",)):
        model, child_url, version = await _child_of(config)
        bodies = await asyncio.to_thread(_bodies, questions, config, model)
        load = _Load({"daemon": _port(config.stage2.base_url), "direct": _port(child_url)}, bodies, questions, config)
        for side in ("daemon", "direct"):
            await load.lap(side, max(CONCURRENCIES), requests)
        tell("warm-up done")
        measured = {at_once: [await load.pair(n, at_once, requests) for n in range(pairs)] for at_once in _told(tell)}
    return Stage2Figures(model, version, measured)


def make_questions(config: Config) -> list[Question]:
    """Slots of the demo world, always the same."""
    slots = (sample_slot(generator(DEMO, index), _SIZE) for index in range(_QUESTIONS))
    return [question_of(slot, config.pipeline) for slot in slots]


def bars_of(figures: Stage2Figures) -> list[Bar]:
    """The bars."""
    busy, alone = figures.pairs[STAGE2_LIMIT], figures.pairs[1]
    ratio = statistics.median(pair.ratio for pair in busy)
    added_ms = statistics.median(pair.added_ms for pair in alone)
    return [
        Bar(f"daemon / direct, requests per second at {STAGE2_LIMIT}: median of the pairs", ratio, ">=", 0.95),
        Bar("latency added at 1, p50 in ms: median of the pairs", added_ms, "<=", 5),
    ]


def build_report(machine: dict[str, Any], requests: int, figures: Stage2Figures, bars: Sequence[Bar]) -> dict[str, Any]:
    """The JSON report."""
    alone = _side([pair.daemon for pair in figures.pairs[1]])["per_s"]
    rows = []
    for at_once, pairs in figures.pairs.items():
        daemon, direct = _side([pair.daemon for pair in pairs]), _side([pair.direct for pair in pairs])
        rows.append(
            {
                "concurrency": at_once,
                "daemon": daemon,
                "direct": direct,
                "ratio": round(statistics.median(pair.ratio for pair in pairs), 4),
                "added_p50_ms": round(statistics.median(pair.added_ms for pair in pairs), 2),
                "daemon_over_daemon_at_1": round(daemon["per_s"] / alone, 3),
                "pairs": [pair.as_dict() for pair in pairs],
            }
        )
    return {
        "bench": "stage2",
        "engines": {"stage2": f"vllm {figures.version}"},
        "models": {"stage2": figures.model},
        "machine": machine,
        "workload": {"images": 3, "size": list(_SIZE), "requests": requests, "laps": dict(LAPS), "limit": STAGE2_LIMIT},
        "rows": rows,
        "bars": [bar.as_dict() for bar in bars],
    }


def _side(runs: Sequence[Run]) -> dict[str, Any]:
    """One side at one concurrency: the median run's throughput, percentiles of all latencies."""
    latencies = [latency for run in runs for latency in run.latencies_s]
    p50, p99 = (1e3 * float(value) for value in np.percentile(latencies, (50, 99)))
    return {
        "per_s": round(statistics.median(run.per_s for run in runs), 3),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "valid": sum(run.valid for run in runs),
        "answers": len(latencies),
    }


class _Load:
    """The same requests for both sides, from the same client."""

    def __init__(
        self, ports: Mapping[Side, int], bodies: Sequence[bytes], questions: Sequence[Question], config: Config
    ) -> None:
        self._ports, self._config, self._questions = ports, config, questions
        self._requests = [HttpRequest.post(_PATH, body, {"Content-Type": "application/json"}) for body in bodies]
        self._keys = itertools.count()

    async def pair(self, number: int, at_once: int, requests: int) -> Pair:
        """Both sides, every other lap the other first; every other pair begins with the other."""
        laps: dict[Side, list[Run]] = {"daemon": [], "direct": []}
        for lap in range(number, number + LAPS[at_once]):
            for side in self._order(lap):
                laps[side].append(await self.lap(side, at_once, requests))
        return Pair(self._order(number)[0], Run.of(laps["daemon"]), Run.of(laps["direct"]))

    @staticmethod
    def _order(number: int) -> tuple[Side, Side]:
        return ("daemon", "direct") if number % 2 == 0 else ("direct", "daemon")

    async def lap(self, side: Side, at_once: int, requests: int) -> Run:
        """So many clients, each with a connection of its own, share the requests out."""
        waiting = iter(range(requests))
        replies: dict[int, HttpReply] = {}
        connections: list[Connection] = []
        try:
            for _ in range(at_once):
                connections.append(await self._connect(side))  # noqa: PERF401 - those made must be closed
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for connection in connections:
                    group.create_task(self._client(connection, waiting, replies))
            wall_s = time.perf_counter() - begun
        except* StageError as errors:
            raise StageError(f"{side}: {errors.exceptions[0]}") from errors
        finally:
            for connection in connections:
                connection.close()
        valid = sum(self._is_valid(number, reply.body) for number, reply in replies.items())
        return Run(tuple(replies[number].total_s for number in range(requests)), wall_s, valid)

    async def _connect(self, side: Side) -> Connection:
        return await Connection.open(self._ports[side], timeout_s=self._config.stage2.timeout_s)

    async def _client(self, connection: Connection, waiting: Iterator[int], replies: dict[int, HttpReply]) -> None:
        for number in waiting:
            request = self._requests[number % len(self._requests)]
            # A key of its own, as the orchestrator sends it: nothing is answered from memory.
            replies[number] = await connection.ask(request.with_header(IDEMPOTENCY_HEADER, f"bench/{next(self._keys)}"))

    def _is_valid(self, number: int, body: bytes) -> bool:
        try:
            read_answer(json.loads(body), self._questions[number % len(self._questions)], self._config.pipeline)
        except (AnswerError, ValueError):
            return False
        return True


def _bodies(questions: Sequence[Question], config: Config, model: str) -> list[bytes]:
    tokens = config.stage2.max_tokens
    made = (build_request(each, config.pipeline, model=model, max_tokens=tokens, send=1) for each in questions)
    return [json.dumps(body).encode() for body in made]


async def _child_of(config: Config) -> tuple[str, str, str]:
    """`(model, URL of vLLM, its version)` as the daemon and vLLM tell them."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{config.stage2.base_url}/health") as reply:
            health = await reply.json()
        url = health.get("child_url")
        if not url:
            raise StageError(f"the daemon names no vLLM behind it: it is {health.get('child', 'another engine')}")
        async with session.get(f"{url}/version") as reply:
            version = await reply.json(content_type=None)
    return health["model"], url, version["version"]


def _port(url: str) -> int:
    port = urlsplit(url).port
    if port is None:
        raise StageError(f"{url} has no port")
    return port


def _told(tell: Tell) -> Iterator[int]:
    for at_once in CONCURRENCIES:
        tell(f"{at_once} at once")
        yield at_once
