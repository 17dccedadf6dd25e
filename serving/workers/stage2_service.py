"""Between HTTP and the engine: the scheduler, time limits, times and metrics of every request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from pipeline_ver2.config import Stage2Config
from pipeline_ver2.errors import StageTimeout, UnknownModel, ZroactError
from serving.workers.chat import Chat
from serving.workers.daemon import RequestContext
from serving.workers.limits import build_limit
from serving.workers.scheduler import Scheduler
from serving.workers.stage2_engine import Engine, EngineEvent, Watch

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 60)


@dataclass(frozen=True, slots=True)
class Served:
    """A completion with the seconds it waited and ran."""

    completion: dict[str, Any]
    queue_s: float
    run_s: float


@dataclass(slots=True)
class StreamTimes:
    """Filled in before the first chunk is handed out; `run_s` then is the time to it."""

    queue_s: float = 0.0
    run_s: float = 0.0


@dataclass(slots=True)
class _Span:
    """One admitted request: what it waited, and when it must be done (the loop's clock)."""

    queue_s: float
    began: float
    end_at: float
    watch: Watch = field(default_factory=Watch)

    def times(self) -> tuple[float, float]:
        """`(queue_s, run_s)` up to now; what the engine waited for itself counts as queue."""
        ran_s = time.monotonic() - self.began
        return self.queue_s + self.watch.waited_s, ran_s - self.watch.waited_s


class Stage2Service:
    """Sends each request to the engine once, when the scheduler lets it."""

    def __init__(self, settings: Stage2Config, engine: Engine, registry: CollectorRegistry) -> None:
        self.engine = engine
        self.scheduler = Scheduler(build_limit(settings.limit), settings.max_queue, min_share=settings.min_share)
        self._timeout_s = settings.timeout_s
        self._metrics = _Metrics(registry, self)
        engine.on_event = self._on_event

    async def complete(self, chat: Chat, context: RequestContext) -> Served:
        """Answer in one piece.

        Raises:
            UnknownModel: The request names another model than the one served.
            StageError: The scheduler refused, the engine is away or failed, or took longer than `stage2.timeout_s`.
            RequestError: The engine cannot do what is asked.
        """
        await self._check_model(chat)
        async with self._admitted(context) as span:
            try:
                async with asyncio.timeout_at(span.end_at):
                    completion = await self.engine.complete(chat, span.watch)
            except TimeoutError as error:
                raise self._too_slow() from error
            queue_s, run_s = span.times()
        self._metrics.count_tokens(completion.get("usage"))
        return Served(completion, queue_s, run_s)

    async def stream(
        self, chat: Chat, context: RequestContext, times: StreamTimes
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Answer in chunks; raises as `complete`. Closing this stops the engine."""
        await self._check_model(chat)
        async with self._admitted(context) as span, aclosing(self.engine.stream(chat, span.watch)) as chunks:
            while True:
                try:
                    # One step at a time: the steps of a stream may be awaited by different tasks.
                    async with asyncio.timeout_at(span.end_at):
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    raise self._too_slow() from error
                times.queue_s, times.run_s = span.times()
                yield chunk

    async def _check_model(self, chat: Chat) -> None:
        served = await self.engine.served_model()
        if chat.model != served:
            raise UnknownModel(f"model: {chat.model[:100]!r} is not served here; this is {served!r}")

    @asynccontextmanager
    async def _admitted(self, context: RequestContext) -> AsyncIterator[_Span]:
        outcome = "internal"
        try:
            async with self.scheduler.slot(client=context.client, deadline_at=context.deadline_at) as permit:
                now = asyncio.get_running_loop().time()
                span = _Span(permit.queue_s, time.monotonic(), now + self._timeout_s)
                try:
                    yield span
                finally:
                    self._metrics.observe(*span.times())
            outcome = "ok"
        except ZroactError as error:
            outcome = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            self._metrics.requests.labels(outcome).inc()

    def _too_slow(self) -> StageTimeout:
        return StageTimeout(f"no answer within {self._timeout_s:g} s (stage2.timeout_s)")

    def _on_event(self, event: EngineEvent) -> None:
        self._metrics.events.labels(event).inc()
        if event == "out_of_memory":
            self.scheduler.out_of_memory()
        elif event == "memory_pressure":
            self.scheduler.memory_pressure()


class _Metrics:
    def __init__(self, registry: CollectorRegistry, service: Stage2Service) -> None:
        self.requests = Counter(
            "zroact_stage2_requests", "Requests to the engine by outcome.", ["outcome"], registry=registry
        )
        self.events = Counter(
            "zroact_stage2_engine_events",
            "What happened to the engine: out_of_memory, memory_pressure, failure, restart.",
            ["event"],
            registry=registry,
        )
        self._tokens = Counter("zroact_stage2_tokens", "Tokens by kind.", ["kind"], registry=registry)
        self._queue = Histogram(
            "zroact_stage2_queue_seconds", "Time a request waited.", buckets=_BUCKETS_S, registry=registry
        )
        self._run = Histogram(
            "zroact_stage2_run_seconds", "Time the engine had a request.", buckets=_BUCKETS_S, registry=registry
        )
        for name, said in (("running", "at work"), ("waiting", "waiting"), ("limit", "allowed at once")):
            gauge = Gauge(f"zroact_stage2_{name}", f"Requests {said} now.", registry=registry)
            gauge.set_function(lambda name=name: getattr(service.scheduler.stats(), name))  # type: ignore[misc]
        registry.register(_Refusals(service.scheduler))
        engine = Gauge("zroact_stage2_engine", "The engine and its model.", ["engine", "model"], registry=registry)
        engine.labels(service.engine.name, service.engine.model).set(1)
        for event in get_args(EngineEvent):
            self.events.labels(event)

    def observe(self, queue_s: float, run_s: float) -> None:
        """Note the times of one admitted request."""
        self._queue.observe(queue_s)
        self._run.observe(run_s)

    def count_tokens(self, usage: object) -> None:
        """Add the usage of a completion, where it has one."""
        for kind in ("prompt", "completion"):
            count = usage.get(f"{kind}_tokens") if isinstance(usage, dict) else None
            if isinstance(count, int) and count > 0:
                self._tokens.labels(kind).inc(count)


class _Refusals(Collector):
    """The scheduler's own counts of those that never reached the engine."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Shed and rejected by reason, and cancelled while waiting."""
        stats = self._scheduler.stats()
        said = {"shed": "Requests refused as too late", "rejected": "Requests refused by a full queue"}
        for name, counts in (("shed", stats.shed), ("rejected", stats.rejected)):
            family = CounterMetricFamily(f"zroact_stage2_{name}", f"{said[name]}, by reason.", labels=["reason"])
            for reason, count in counts.items():
                family.add_metric([reason], count)
            yield family
        cancelled = CounterMetricFamily("zroact_stage2_cancelled_waiting", "Requests given up while they waited.")
        cancelled.add_metric([], stats.cancelled)
        yield cancelled
