"""What all engines of this process share."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from pipeline_ver2.errors import EngineFailed, RequestError
from serving.workers.chat import Chat, End, Piece, parse_chat
from serving.workers.stage2_engine import Watch
from tests.chats import chat_body
from tests.stage2 import ScriptedEngine


def chat(**fields: object) -> Chat:
    """A checked chat."""
    return parse_chat({**chat_body(), **fields}, default_max_tokens=160)


async def test_pieces_become_one_completion() -> None:
    """Text, reason, usage, model."""
    completion = await ScriptedEngine(["One", " two"]).complete(chat(), Watch())
    choice = completion["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["index"]) == ("One two", "stop", 0)
    assert completion["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert (completion["object"], completion["model"]) == ("chat.completion", "emulated")


async def test_pieces_become_chunks() -> None:
    """The role first, the reason last, one id throughout; usage only where asked for."""
    engine = ScriptedEngine(["One", " two"], ["One"], finish_reason="length")
    chunks = [chunk async for chunk in engine.stream(chat(stream=True), Watch())]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "One"}, {"content": " two"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    asked = chat(stream=True, stream_options={"include_usage": True})
    *_, last = [chunk async for chunk in engine.stream(asked, Watch())]
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)


async def test_an_empty_answer_is_an_answer() -> None:
    """No piece at all."""
    completion = await ScriptedEngine([]).complete(chat(), Watch())
    assert completion["choices"][0]["message"]["content"] == ""
    chunks = [chunk async for chunk in ScriptedEngine([]).stream(chat(), Watch())]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_a_closed_stream_closes_the_generation() -> None:
    """At once."""
    engine = ScriptedEngine(["One", ScriptedEngine.HANG])
    stream = engine.stream(chat(), Watch())
    await anext(stream)
    await stream.aclose()
    assert [engine.next_event(), engine.next_event()] == ["began", "ended"]


async def test_what_it_cannot_do_is_refused_before_it_begins() -> None:
    """Whole or streamed."""
    engine = ScriptedEngine("One")
    with pytest.raises(RequestError, match=r"^stop: "):
        await engine.complete(chat(stop="x"), Watch())
    with pytest.raises(RequestError, match=r"^stop: "):
        await anext(engine.stream(chat(stop="x"), Watch()))
    assert engine.chats == []


class Endless(ScriptedEngine):
    """Forgets to say how it ended."""

    async def pieces(self, chat: Chat, watch: Watch) -> AsyncGenerator[Piece | End, None]:
        """One piece."""
        yield Piece("One")


async def test_an_answer_without_an_end_is_a_failure() -> None:
    """Never a short answer that looks whole."""
    with pytest.raises(EngineFailed):
        await Endless().complete(chat(), Watch())


def test_a_hurt_engine_has_no_signs_of_life() -> None:
    """And tells of it."""
    engine = ScriptedEngine()
    events: list[str] = []
    engine.on_event = events.append
    engine.was_alive()
    before = engine.alive_at
    engine.was_hurt("failure")
    assert before is not None
    assert engine.alive_at is None
    assert events == ["failure"]


async def test_only_what_may_have_stopped_it_takes_the_proof_of_work_away() -> None:
    """Memory pressure comes of work; a failure or a full memory may have been the end of it."""
    engine = ScriptedEngine()
    engine.was_alive()
    engine.was_hurt("memory_pressure")
    assert engine.alive_at is not None
    engine.was_hurt("out_of_memory")
    assert engine.alive_at is None
