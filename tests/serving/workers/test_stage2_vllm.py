"""The vllm engine against a program that plays vLLM's server. What real vLLM does is not shown here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline_ver2.config import Stage2Config
from pipeline_ver2.errors import ConfigError, EngineFailed, StageError, StageTimeout, StageUnreachable
from serving.workers.chat import Chat, parse_chat
from serving.workers.stage2_engine import Watch
from serving.workers.stage2_readiness import Readiness
from serving.workers.stage2_server import build_app
from serving.workers.stage2_vllm import VllmEngine
from tests.chats import chat_body, picture
from tests.fake_vllm import write_executable
from tests.servers import served, spawned
from tests.stage2 import stage2_config

PATIENCE_S = 60


def chat(text: str = "Hello", **fields: object) -> Chat:
    """A checked chat."""
    return parse_chat({**chat_body(picture(), text=text, model="m"), **fields}, default_max_tokens=9)


def settings_for(folder: Path, *arguments: str, **stage2: object) -> Stage2Config:
    """Stage 2 with the fake vLLM."""
    program = write_executable(folder / "fake-python")
    own: dict[str, Any] = {"engine": "vllm", "model": "m", "vllm_python": str(program), "timeout_s": 5, **stage2}
    return stage2_config(folder, vllm_args=["--notes", str(folder), *arguments], **own).stage2


@asynccontextmanager
async def running(engine: VllmEngine) -> AsyncIterator[VllmEngine]:
    """The engine with its child up."""
    await engine.start()
    try:
        await ready(engine)
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def starting(engine: VllmEngine) -> AsyncIterator[None]:
    """While the engine tries to come up."""
    start = asyncio.create_task(engine.start())
    try:
        yield
    finally:
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await engine.close()


async def ready(engine: VllmEngine) -> None:
    """Ask until a real answer comes."""
    await until(lambda: engine.server is not None)
    await Readiness(engine).check()


async def until(condition: Callable[[], bool]) -> None:
    """Poll what other processes do."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - other processes have no events
            await asyncio.sleep(0.02)


def notes(folder: Path) -> list[dict[str, Any]]:
    """What each child so far has written, oldest first."""
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(file.read_text()) for file in files]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_the_child_answers_through_the_daemon(tmp_path: Path) -> None:
    """Whole and streamed; its command line has the model, our limits, then the user's options, then the address."""
    async with running(VllmEngine(settings_for(tmp_path, limit=3))) as engine:
        completion = await engine.complete(chat(), Watch())
        chunks = [chunk async for chunk in engine.stream(chat(stream=True), Watch())]
        assert engine.state()["child"] == "up"
    assert completion["choices"][0]["message"]["content"] == "one two"
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["one ", "two"]
    arguments = notes(tmp_path)[0]["arguments"]
    assert arguments[:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
    assert arguments[arguments.index("--max-num-seqs") + 1] == "4"
    guided = json.loads(arguments[arguments.index("--structured-outputs-config") + 1])
    assert guided["disable_any_whitespace"] is True
    assert arguments[-6:-2] == ["--notes", str(tmp_path), "--host", "127.0.0.1"]


@pytest.mark.fault("B6", "B7")
async def test_a_child_that_dies_fails_one_request_and_is_replaced(tmp_path: Path) -> None:
    """Exit code 0 or not: the request is lost, the next are told to wait, then all is well again."""
    async with running(VllmEngine(settings_for(tmp_path))) as engine:
        events: list[str] = []
        engine.on_event = events.append
        with pytest.raises(EngineFailed):
            await engine.complete(chat("die"), Watch())
        await until(lambda: engine.server is None)
        with pytest.raises(StageUnreachable) as caught:
            await engine.complete(chat(), Watch())
        assert caught.value.retry_after_s == 2
        with pytest.raises(StageUnreachable):
            await Readiness(engine).check()
        await ready(engine)
        assert (await engine.complete(chat(), Watch()))["choices"]
        assert events == ["failure", "restart"]
    first, second = notes(tmp_path)
    assert first["pid"] != second["pid"]
    assert is_gone(first["helper_pid"])


@pytest.mark.fault("B7")
async def test_a_child_killed_from_outside_is_replaced(tmp_path: Path) -> None:
    """With kill -9, and what it had started is cleaned up."""
    async with running(VllmEngine(settings_for(tmp_path))) as engine:
        os.kill(notes(tmp_path)[0]["pid"], signal.SIGKILL)
        await until(lambda: len(notes(tmp_path)) == 2 and engine.server is not None)
        assert is_gone(notes(tmp_path)[0]["helper_pid"])


@pytest.mark.fault("B7")
async def test_a_dead_engine_behind_a_healthy_web_server_is_replaced(tmp_path: Path) -> None:
    """Its health page is well, its answers are not: not ready, and after three checks a new child."""
    engine = VllmEngine(settings_for(tmp_path), check_every_s=0.1, check_deadline_s=1)
    async with running(engine):
        with pytest.raises(EngineFailed):
            await engine.complete(chat("zombie"), Watch())
        with pytest.raises(StageUnreachable, match="not ready"):
            await Readiness(engine).check()
        await until(lambda: len(notes(tmp_path)) == 2)
        await ready(engine)


@pytest.mark.fault("B7")
async def test_a_child_that_cannot_start_is_tried_again_ever_more_slowly(tmp_path: Path) -> None:
    """The daemon stays alive and says what it is waiting for."""
    engine = VllmEngine(settings_for(tmp_path, "--fail-at-start"))
    async with starting(engine):
        await until(lambda: engine.state()["child_starts"] == 2)
        with pytest.raises(StageUnreachable, match="vLLM is not up"):
            await engine.complete(chat(), Watch())
        await until(lambda: engine.state()["child"] == "starting again in 4 s")


@pytest.mark.fault("B7")
async def test_a_child_that_never_came_up_is_given_up(tmp_path: Path) -> None:
    """After five starts, with its own words for it: the first error it names, not what follows from it."""
    engine = VllmEngine(settings_for(tmp_path, "--fail-at-start"), first_delay_s=0.01)
    with pytest.raises(ConfigError) as caught:
        await engine.start()
    await engine.close()
    message = str(caught.value)
    assert message.startswith("stage2.vllm_python: ")
    assert "started 5 times" in message
    assert message.endswith("ended with exit code 1: ValueError: no such model")


async def test_a_child_that_was_up_once_is_never_given_up(tmp_path: Path) -> None:
    """However often it dies while starting after that: what it lacks may come back."""
    program = tmp_path / "fake-python"
    async with running(VllmEngine(settings_for(tmp_path), first_delay_s=0.01)) as engine:
        program.write_text("#!/bin/sh\nexit 1\n")
        os.kill(notes(tmp_path)[0]["pid"], signal.SIGKILL)
        await until(lambda: engine.state()["child_starts"] > 6)
        write_executable(program)
        await ready(engine)


@pytest.mark.fault("B7")
async def test_a_child_that_hangs_while_it_starts_is_ended(tmp_path: Path) -> None:
    """After `start_timeout_s`; `sleep` stands for a server that hangs while loading."""
    program = tmp_path / "sleeper"
    program.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 1\nexec sleep 600\n')
    program.chmod(0o755)
    settings = settings_for(tmp_path).model_copy(update={"vllm_python": str(program), "start_timeout_s": 0.3})
    engine = VllmEngine(settings)
    async with starting(engine):
        await until(lambda: str(engine.state()["child"]).startswith("starting again"))


@pytest.mark.fault("B7")
async def test_a_child_that_gets_on_with_nothing_is_replaced(tmp_path: Path) -> None:
    """It has work, its web server is well and its metrics stand still; the checks alone would take far longer."""
    engine = VllmEngine(settings_for(tmp_path, timeout_s=1), check_every_s=600, look_every_s=0.1)
    async with running(engine):
        while len(notes(tmp_path)) == 1:  # each is given up after a second, the next comes at once
            asked = [engine.complete(chat("hang"), Watch()) for _ in range(2)]
            for lost in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(lost, StageError), repr(lost)
        await ready(engine)


async def test_work_that_goes_on_slowly_is_left_alone(tmp_path: Path) -> None:
    """One chat hangs, but the engine's steps are counted: alive, not replaced, whatever a check would say."""
    engine = VllmEngine(settings_for(tmp_path, timeout_s=3), check_every_s=0.1, check_deadline_s=0.2)
    async with running(engine):
        hanging = asyncio.create_task(engine.complete(chat("hang"), Watch()))
        while not hanging.done():
            await engine.complete(chat(), Watch())
        assert isinstance(hanging.exception(), StageTimeout)
        assert engine.state()["child_starts"] == 1


@pytest.mark.fault("B9")
@pytest.mark.parametrize("wish", ["preempt", "full"])
async def test_memory_pressure_is_told(tmp_path: Path, wish: str) -> None:
    """When vLLM has to take requests out of its cache, or that is nearly full; not otherwise, and nothing restarts."""
    async with running(VllmEngine(settings_for(tmp_path), look_every_s=0.05)) as engine:
        events: list[str] = []
        engine.on_event = events.append
        await engine.complete(chat(), Watch())
        engine.alive_at = None
        await until(lambda: engine.alive_at is not None)  # it has looked
        assert events == []
        await engine.complete(chat(wish), Watch())
        await until(lambda: "memory_pressure" in events)
        assert set(events) == {"memory_pressure"}
        assert engine.state()["child_starts"] == 1


async def test_vllms_metrics_are_passed_on(tmp_path: Path) -> None:
    """In the daemon's own, for as long as it has any; the daemon's come whatever vLLM does."""
    engine = VllmEngine(settings_for(tmp_path))
    async with aiohttp.ClientSession() as http:
        with served(build_app(stage2_config(tmp_path, model="m"), engine)) as url:

            async def families() -> set[str]:
                async with http.get(f"{url}/metrics") as response:
                    assert response.status == 200
                    return {family.name for family in text_string_to_metric_families(await response.text())}

            ours, theirs = "zroact_stage2_running", "vllm:kv_cache_usage_perc"
            assert {ours, theirs} <= await families()
            async with http.post(f"{url}/v1/chat/completions", json=chat_body(model="m", text="mute")) as response:
                assert response.status == 200
            assert theirs not in await families()
            os.kill(notes(tmp_path)[0]["pid"], signal.SIGKILL)
            assert ours in await families()


@pytest.mark.slow
@pytest.mark.fault("B7")
def test_a_daemon_whose_vllm_cannot_start_ends(tmp_path: Path) -> None:
    """With the exit code for a configuration that cannot work, and one line that names the key and vLLM's words."""
    program = tmp_path / "no-vllm"
    program.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no vllm'; exit 1\n")
    program.chmod(0o755)
    arguments = ["--set=stage2.engine=vllm", f"--set=stage2.vllm_python={program}"]
    with spawned(["-m", "serving.workers.stage2_server", "--port", "0", *arguments], tmp_path) as daemon:
        assert daemon.process.wait(timeout=90) == 2
        said = [line for line in daemon.log().splitlines() if "cannot work" in line]
    assert len(said) == 1
    assert f"stage2.vllm_python: {program}" in said[0]
    assert said[0].endswith("ModuleNotFoundError: no vllm")


async def test_an_answer_that_takes_too_long_is_a_time_out(tmp_path: Path) -> None:
    """And a 500 is a failed engine; neither is sent again."""
    async with running(VllmEngine(settings_for(tmp_path, timeout_s=0.5))) as engine:
        with pytest.raises(StageTimeout):
            await engine.complete(chat("hang"), Watch())
        with pytest.raises(EngineFailed, match="it broke"):
            await engine.complete(chat("break"), Watch())


async def test_closing_leaves_no_process(tmp_path: Path) -> None:
    """Guard, child and what the child started."""
    async with running(VllmEngine(settings_for(tmp_path))) as engine:
        guard = engine.state()["child_guard_pid"]
    (child,) = notes(tmp_path)
    for pid in (guard, child["pid"], child["helper_pid"]):
        assert is_gone(pid)


@pytest.mark.slow
@pytest.mark.fault("O5")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_child_never_outlives_the_daemon(tmp_path: Path, number: signal.Signals) -> None:
    """Even when the daemon is killed with kill -9."""
    program = write_executable(tmp_path / "fake-python")
    settings = {"engine": "vllm", "model": "m", "vllm_python": str(program), "vllm_args": ["--notes", str(tmp_path)]}
    arguments = [
        f"--set=stage2.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
    ]
    with spawned(["-m", "serving.workers.stage2_server", "--port", "0", *arguments], tmp_path) as daemon:
        await until(lambda: bool(notes(tmp_path)))
        daemon.process.send_signal(number)
        began = time.monotonic()
        (child,) = notes(tmp_path)
        await until(lambda: is_gone(child["pid"]) and is_gone(child["helper_pid"]))
        assert time.monotonic() - began < 30


async def test_the_childs_output_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Line by line, with a prefix."""
    with caplog.at_level("INFO"):
        async with running(VllmEngine(settings_for(tmp_path))):
            await until(lambda: "vllm: the fake vLLM listens" in caplog.messages)


async def test_an_interpreter_that_is_none_stops_the_start(tmp_path: Path) -> None:
    """The message names the key."""
    settings = settings_for(tmp_path).model_copy(update={"vllm_python": "/no/python"})
    with pytest.raises(ConfigError, match=r"stage2\.vllm_python"):
        await VllmEngine(settings).start()
