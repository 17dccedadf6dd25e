"""Readiness is a real answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pipeline_ver2.errors import EngineFailed, RequestError, StageUnreachable
from serving.workers.stage2_choice import build_engine
from serving.workers.stage2_readiness import Readiness, probe_chat
from tests.openai_upstream import Answer, error, hang, replying, upstream
from tests.stage2 import ScriptedEngine, stage2_config


def test_the_probe_is_one_image_and_one_token() -> None:
    """As small as a real answer can be, and of the size models take."""
    chat = probe_chat("m")
    assert (len(chat.images), chat.max_tokens, chat.temperature) == (1, 1, 0.0)


@pytest.mark.fault("B7")
@pytest.mark.parametrize(
    ("answer", "said"), [(replying(500, error(None)), "500"), (replying(400, error(None)), "refuses a plain image")]
)
async def test_a_healthy_page_alone_does_not_do(tmp_path: Path, answer: Answer, said: str) -> None:
    """The engine behind it must answer; then all is well."""
    async with upstream(answer) as server:
        engine = build_engine(stage2_config(tmp_path, engine="remote", remote_url=server.url).stage2)
        await engine.start()
        with pytest.raises(StageUnreachable, match=said):
            await Readiness(engine).check()
        server.answer, server.has_health = None, False
        await Readiness(engine).check()
        assert server.bodies[1]["max_tokens"] == 1
        await engine.close()


async def test_a_proof_of_life_is_used_for_a_while() -> None:
    """Ten checks at once and one after are one probe; a stale proof is none."""
    engine = ScriptedEngine("a", "b")
    readiness = Readiness(engine)
    await asyncio.gather(*(readiness.check() for _ in range(10)))
    await readiness.check()
    assert len(engine.chats) == 1
    await Readiness(engine, fresh_s=0).check()
    assert len(engine.chats) == 2


async def test_a_probe_without_an_answer_ends(tmp_path: Path) -> None:
    """Within the deadline, whatever the engine does."""
    async with upstream(hang) as server:
        engine = build_engine(stage2_config(tmp_path, engine="remote", remote_url=server.url).stage2)
        await engine.start()
        with pytest.raises(StageUnreachable, match=r"no answer within 0\.2 s"):
            await Readiness(engine, deadline_s=0.2).check()
        await engine.close()


async def test_an_engine_that_works_meanwhile_is_busy_not_dead() -> None:
    """Tokens for others while the probe waits prove as much as its own."""
    engine = ScriptedEngine([ScriptedEngine.HANG])
    check = asyncio.create_task(Readiness(engine, deadline_s=0.2).check())
    await asyncio.to_thread(engine.next_event)
    engine.was_alive()
    await check


@pytest.mark.fault("B7")
async def test_a_failure_is_found_out_at_once() -> None:
    """What the engine did before it failed proves nothing."""
    engine = ScriptedEngine("a", EngineFailed("dead"), RequestError("no images"))
    readiness = Readiness(engine)
    await readiness.check()
    engine.was_hurt("failure")
    with pytest.raises(StageUnreachable, match="dead"):
        await readiness.check()
    with pytest.raises(StageUnreachable, match="no images"):
        await readiness.check()


async def test_closing_stops_the_probe_at_work() -> None:
    """Nothing is left running."""
    engine = ScriptedEngine([ScriptedEngine.HANG])
    readiness = Readiness(engine)
    check = asyncio.create_task(readiness.check())
    assert await asyncio.to_thread(engine.next_event) == "began"
    await readiness.close()
    assert await asyncio.to_thread(engine.next_event) == "ended"
    with pytest.raises(asyncio.CancelledError):
        await check
