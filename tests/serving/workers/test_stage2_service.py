"""Between HTTP and the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pipeline_ver2.errors import DeadlineShed, EngineFailed, QueueFull, StageTimeout, UnknownModel
from serving.workers.chat import Chat, End, Piece, parse_chat
from serving.workers.daemon import RequestContext
from serving.workers.stage2_engine import Watch
from serving.workers.stage2_service import Stage2Service, StreamTimes
from tests.chats import chat_body
from tests.stage2 import ScriptedEngine, stage2_config

CONTEXT = RequestContext(client="test", deadline_at=None, idempotency_key=None)


class Served:
    """A service with its metrics."""

    def __init__(self, folder: Path, engine: ScriptedEngine, **stage2: object) -> None:
        self.registry = CollectorRegistry()
        self.service = Stage2Service(stage2_config(folder, **stage2).stage2, engine, self.registry)

    def value(self, name: str, **labels: str) -> float:
        """One metric; 0 if it is not there."""
        return self.registry.get_sample_value(f"zroact_stage2_{name}", labels) or 0


def chat(model: str = "emulated") -> Chat:
    """A checked chat."""
    return parse_chat(chat_body(model=model), default_max_tokens=160)


async def test_a_request_is_counted_with_its_times(tmp_path: Path) -> None:
    """Outcome, seconds, tokens; the permit is back."""
    served = Served(tmp_path, ScriptedEngine("One"))
    done = await served.service.complete(chat(), CONTEXT)
    assert done.completion["choices"][0]["message"]["content"] == "One"
    assert served.value("requests_total", outcome="ok") == 1
    assert served.value("run_seconds_count") == served.value("queue_seconds_count") == 1
    assert served.value("tokens_total", kind="completion") == 2
    assert served.value("running") == 0


class Waiting(ScriptedEngine):
    """Waits for something of its own before it works."""

    async def pieces(self, chat: Chat, watch: Watch) -> AsyncGenerator[Piece | End, None]:
        """Half of it was waiting, says the watch."""
        await asyncio.sleep(0.2)
        watch.waited_s += 0.1
        yield Piece("One")
        yield End("stop", 1, 1)


async def test_what_the_engine_waited_for_itself_counts_as_queue(tmp_path: Path) -> None:
    """Not as work, streamed or not."""
    served = Served(tmp_path, Waiting())
    done = await served.service.complete(chat(), CONTEXT)
    times = StreamTimes()
    chunks = [chunk async for chunk in served.service.stream(chat(), CONTEXT, times)]
    assert len(chunks) == 3
    for queue_s, run_s in ((done.queue_s, done.run_s), (times.queue_s, times.run_s)):
        assert queue_s == pytest.approx(0.1, abs=0.05)
        assert 0.08 < run_s < 0.4


@pytest.mark.parametrize(
    ("script", "error", "outcome"),
    [
        (EngineFailed("died"), EngineFailed, "engine_failed"),
        ([ScriptedEngine.HANG], StageTimeout, "stage_timeout"),
    ],
)
async def test_failures_are_counted_by_their_code(
    tmp_path: Path, script: EngineFailed | list[str | EngineFailed], error: type[Exception], outcome: str
) -> None:
    """Whole and streamed; permits come back."""
    served = Served(tmp_path, ScriptedEngine(script, script), timeout_s=0.1)  # type: ignore[arg-type]
    with pytest.raises(error):
        await served.service.complete(chat(), CONTEXT)
    with pytest.raises(error):
        await anext(served.service.stream(chat(), CONTEXT, StreamTimes()))
    assert served.value("requests_total", outcome=outcome) == 2
    assert served.value("running") == 0


async def test_a_closed_stream_gives_its_permit_back(tmp_path: Path) -> None:
    """And counts as cancelled."""
    engine = ScriptedEngine(["One", ScriptedEngine.HANG])
    served = Served(tmp_path, engine)
    stream = served.service.stream(chat(), CONTEXT, StreamTimes())
    await anext(stream)
    assert served.value("running") == 1
    await stream.aclose()
    assert served.value("running") == 0
    assert served.value("requests_total", outcome="cancelled") == 1


async def test_another_model_is_refused_without_waiting(tmp_path: Path) -> None:
    """It takes no permit and is no request to the engine."""
    served = Served(tmp_path, ScriptedEngine())
    with pytest.raises(UnknownModel, match="'gpt' is not served here"):
        await served.service.complete(chat("gpt"), CONTEXT)
    assert served.service.scheduler.stats().admitted == 0


@pytest.mark.fault("B9")
async def test_running_out_of_memory_lowers_the_limit(tmp_path: Path) -> None:
    """Other events only count."""
    engine = ScriptedEngine()
    served = Served(tmp_path, engine, limit=3)
    engine.was_hurt("failure")
    engine.was_hurt("out_of_memory")
    assert served.value("limit") == 2
    assert served.value("engine_events_total", event="out_of_memory") == 1
    assert served.value("engine_events_total", event="failure") == 1


async def test_what_never_reached_the_engine_is_counted_by_reason(tmp_path: Path) -> None:
    """Shed, refused, displaced, given up; waiting is told apart from working."""
    served = Served(tmp_path, ScriptedEngine([ScriptedEngine.HANG]), limit=1, max_queue=2)
    tasks = [asyncio.create_task(served.service.complete(chat(), CONTEXT)) for _ in range(3)]
    while served.value("waiting") < 2:  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)
    assert served.value("running") == 1
    with pytest.raises(QueueFull):
        await served.service.complete(chat(), CONTEXT)
    with pytest.raises(DeadlineShed):
        await served.service.complete(chat(), replace(CONTEXT, deadline_at=time.monotonic() - 1))
    other = asyncio.create_task(served.service.complete(chat(), replace(CONTEXT, client="other")))
    (refused,), _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(refused.exception(), QueueFull)
    for task in (other, *reversed(tasks)):  # the one at work last, or its permit would go to one that waits
        task.cancel()
    await asyncio.gather(other, *tasks, return_exceptions=True)
    for reason in ("queue_full", "displaced"):
        assert served.value("rejected_total", reason=reason) == 1
    assert served.value("shed_total", reason="on_arrival") == 1
    assert served.value("shed_total", reason="while_waiting") == 0
    assert served.value("cancelled_waiting_total") == 2
    assert served.value("requests_total", outcome="queue_full") == 2
    assert served.value("running") == served.value("waiting") == 0


async def test_the_limit_may_be_a_range(tmp_path: Path) -> None:
    """It starts at its lower end, rises with quick answers, and falls when the engine tells of memory pressure."""
    engine = ScriptedEngine(*["One"] * 64)
    served = Served(tmp_path, engine, limit={"min": 1, "max": 4})
    assert served.value("limit") == 1
    while engine.script:
        await asyncio.gather(*(served.service.complete(chat(), CONTEXT) for _ in range(min(4, len(engine.script)))))
    raised = served.value("limit")
    assert 1 <= raised <= 4
    engine.was_hurt("memory_pressure")
    assert served.value("limit") == max(1, raised - 1)
    assert served.value("engine_events_total", event="memory_pressure") == 1
