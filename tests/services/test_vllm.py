"""Stage 2 on real vLLM, its CPU build, with the embedded model. `make vllm` installs it; `make test` does so first."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.prompts import Question
from pipeline_ver2.stage_clients import Stage2Client
from serving.demo import seeds
from serving.demo.answerer_slots import question_of, sample_slot
from serving.demo.compare_engines import Said, compared
from serving.workers.stage2_engine import DEMO_MODEL
from tests.chats import chat_body, guided, picture
from tests.servers import Spawned, spawned

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
SLOTS, FIRST_SLOT, SAME = 200, 95_000, 198
AT_ONCE = 4
PATIENCE_S = 600  # a busy machine needs minutes for what takes half a minute on a quiet one

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON.exists(), reason="vLLM is not installed: make vllm"),
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawned]:
    """The daemon with vLLM."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        settings = {
            "engine": "vllm",
            "vllm_python": PYTHON,
            "limit": AT_ONCE,
            "max_tokens": 64,
            "start_timeout_s": PATIENCE_S,
        }
        with stage2(tmp_path_factory.mktemp("vllm"), settings) as started:
            yield started


def stage2(folder: Path, settings: dict[str, object]) -> Any:  # noqa: ANN401 - a context manager
    """A daemon of Stage 2 with settings of its section, as a process."""
    arguments = [f"--set=stage2.{key}={value}" for key, value in settings.items()]
    return spawned(["-m", "serving.workers.stage2_server", "--port", "0", *arguments], folder)


@pytest.fixture
async def http(daemon: Spawned) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the daemon, which is ready."""
    async with aiohttp.ClientSession(daemon.url, timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
        await until(lambda: is_ready(session))
        yield session


async def is_ready(session: aiohttp.ClientSession) -> bool:
    """Whether a real answer came."""
    async with session.get("/readyz") as response:
        return response.status == 200


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll what other processes do."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - other processes have no events
            await asyncio.sleep(0.1)


async def metric(session: aiohttp.ClientSession, name: str, **labels: str) -> float:
    """The sum of a series in `/metrics`."""
    async with session.get("/metrics") as response:
        families = list(text_string_to_metric_families(await response.text()))
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


async def post(session: aiohttp.ClientSession, body: object) -> tuple[int, Any, Any]:
    """Status, JSON and headers of one chat."""
    async with session.post("/v1/chat/completions", json=body) as response:
        return response.status, await response.json(), response.headers


def long_chat(tokens: int) -> dict[str, Any]:
    """A chat that has no end before so many tokens."""
    return chat_body(picture(), model=DEMO_MODEL, max_tokens=tokens, ignore_eos=True, temperature=0)


def client(url: str) -> Stage2Client:
    """The orchestrator's client."""
    config: Config = load_config(overrides={"stage2.url": url, "stage2.timeout_s": PATIENCE_S}, environ={})
    return Stage2Client(config.stage2.model_copy(update={"max_tokens": 64}), config.pipeline)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    """Held-out slots of three pictures, as the orchestrator asks about them."""
    settings = load_config(environ={}).pipeline
    slots = (sample_slot(seeds.generator(seeds.VALIDATION_A, FIRST_SLOT + at), (360, 640)) for at in range(SLOTS))
    return [question_of(slot, settings) for slot in slots]


async def ask_all(url: str, questions: list[Question]) -> list[Said]:
    """The first answer to each, four at a time."""
    permits = asyncio.Semaphore(AT_ONCE)
    async with client(url) as stage:

        async def ask(at: int, question: Question) -> Said:
            async with permits:
                asked, _ = await stage.evaluate(question, model=DEMO_MODEL, key=f"slot-{at}")
            assert asked.answer is not None, asked
            return Said(asked.answer.body["action"] if asked.attempts == 1 else None, asked.raw_text)

        return list(await asyncio.gather(*(ask(at, question) for at, question in enumerate(questions))))


async def test_the_same_actions_as_from_transformers(
    http: aiohttp.ClientSession, daemon: Spawned, questions: list[Question], tmp_path: Path
) -> None:
    """Greedy, three pictures a slot, four slots at a time: at least 198 of 200 actions agree, every answer is valid."""
    with stage2(tmp_path, {"engine": "transformers", "threads": 1, "limit": AT_ONCE}) as other:
        from_vllm, from_transformers = await ask_all(daemon.url, questions), await ask_all(other.url, questions)
    figures, _ = compared({"vllm": from_vllm, "transformers": from_transformers})
    assert figures["same action"] >= SAME, figures["differ"]
    assert await metric(http, "vllm:request_success_total", finished_reason="stop") >= SLOTS


async def test_answers_keep_to_any_schema(http: aiohttp.ClientSession) -> None:
    """Also to one the model has never seen, without a blank between its signs."""
    schema = {
        "type": "object",
        "properties": {"count": {"enum": [7]}, "odd": {"type": "boolean"}},
        "required": ["count", "odd"],
        "additionalProperties": False,
    }
    pictures = [picture(shade) for shade in (10, 90, 200)]
    body = chat_body(*pictures, model=DEMO_MODEL, response_format=guided(schema), max_tokens=64)
    status, reply, _ = await post(http, body)
    assert status == 200, reply
    assert reply["choices"][0]["message"]["content"] in ('{"count":7,"odd":true}', '{"count":7,"odd":false}')


async def test_four_are_at_work_at_once(http: aiohttp.ClientSession) -> None:
    """Of eight, as `stage2.limit` says; vLLM works on all four together."""
    chats = [asyncio.create_task(post(http, long_chat(3500))) for _ in range(8)]
    try:
        await until(lambda: reaches(http, "vllm:num_requests_running", AT_ONCE))
        assert await metric(http, "zroact_stage2_limit") == AT_ONCE
        assert await metric(http, "zroact_stage2_running") == AT_ONCE
    finally:
        for chat in chats:
            chat.cancel()
        await asyncio.gather(*chats, return_exceptions=True)
    await until(lambda: reaches(http, "vllm:num_requests_running", 0))


async def reaches(session: aiohttp.ClientSession, name: str, value: float) -> bool:
    """Whether a metric is at a value now."""
    return await metric(session, name) == value


@pytest.mark.fault("B8")
@pytest.mark.parametrize("stream", [False, True])
async def test_vllm_stops_when_the_client_is_gone(http: aiohttp.ClientSession, *, stream: bool) -> None:
    """The request is given up inside vLLM, not finished for nobody."""
    finished = await metric(http, "vllm:request_success_total", finished_reason="length")
    chat = asyncio.create_task(post(http, {**long_chat(3500), "stream": stream}))
    await until(lambda: reaches(http, "vllm:num_requests_running", 1))
    chat.cancel()
    await asyncio.gather(chat, return_exceptions=True)
    await until(lambda: reaches(http, "vllm:num_requests_running", 0))
    assert await metric(http, "vllm:request_success_total", finished_reason="length") == finished


@pytest.mark.fault("B6")
async def test_a_slot_that_vllm_cannot_take_leaves_the_others_alone(http: aiohttp.ClientSession) -> None:
    """A text longer than the model reads is refused; what runs beside it is answered."""
    beside = [asyncio.create_task(post(http, long_chat(60))) for _ in range(2)]
    status, reply, _ = await post(http, chat_body(picture(), model=DEMO_MODEL, text="very long " * 10_000))
    assert (status, reply["error"]["retryable"]) == (400, False)
    assert [status for status, _, _ in await asyncio.gather(*beside)] == [200, 200]


def children(pid: int) -> list[int]:
    """All descendants of a process, nearest first."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(stat[1]), []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found[1:]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def engine_core(daemon: Spawned) -> int:
    """The process in which vLLM computes."""
    (core,) = [
        pid for pid in children(daemon.process.pid) if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return core


@pytest.mark.fault("B6", "B7")
async def test_a_killed_engine_comes_back(
    http: aiohttp.ClientSession, daemon: Spawned, questions: list[Question]
) -> None:
    """kill -9 of vLLM's computing process with four slots in flight: 503 to wait, then every slot is answered."""
    starts = (await health(http))["child_starts"]
    lost = [asyncio.create_task(post(http, long_chat(3500))) for _ in range(AT_ONCE)]
    await until(lambda: reaches(http, "vllm:num_requests_running", AT_ONCE))
    os.kill(engine_core(daemon), signal.SIGKILL)
    for status, reply, _ in await asyncio.gather(*lost):
        assert (status, reply["error"]["retryable"]) == (503, True)
    await until(lambda: is_child(http, "starting"))
    status, reply, headers = await post(http, long_chat(1))
    assert (status, reply["error"]["code"]) == (503, "stage_unreachable")
    assert int(headers["Retry-After"]) >= 1
    await until(lambda: is_ready(http))
    assert (await health(http))["child_starts"] == starts + 1
    assert all(said.action for said in await ask_all(daemon.url, questions[:8]))


async def health(session: aiohttp.ClientSession) -> dict[str, Any]:
    """What `/health` says."""
    async with session.get("/health") as response:
        told: dict[str, Any] = await response.json()
    return told


async def is_child(session: aiohttp.ClientSession, phase: str) -> bool:
    """Whether the child is in a phase of its life, or about to begin anew."""
    return str((await health(session))["child"]).startswith(phase)


@pytest.mark.fault("O5")
async def test_nothing_is_left_of_a_killed_daemon(http: aiohttp.ClientSession, daemon: Spawned) -> None:
    """kill -9 of the daemon takes vLLM with all its processes along. The last test: the daemon is gone then."""
    core = engine_core(daemon)
    family = children(daemon.process.pid)
    assert core in family
    daemon.process.kill()
    began = time.monotonic()

    async def all_gone() -> bool:
        return all(is_gone(pid) for pid in family)

    await until(all_gone)
    assert time.monotonic() - began < 60
