"""Stage 2 under an engine that dies, hangs, breaks and talks nonsense by chance, with clients that go away."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.errors import ZroactError
from pipeline_ver2.prompts import Question, SlotImage
from pipeline_ver2.stage_clients import Stage2Client
from tests.chats import picture
from tests.fake_vllm import ANSWER, write_executable
from tests.servers import spawned

QUESTION = Question(tuple(SlotImage(picture(shade), at) for at, shade in enumerate((10, 20, 30))), ((),) * 3, ("walk",))
AT_ONCE, WINDOW = 4, 8
SEED = 0
GOES_AWAY = 0.06
ENDS = {"ok", "engine_failed", "stage_timeout", "bad_reply", "answer_invalid"}


@pytest.mark.fault("B1", "B6", "B7", "B8")
@pytest.mark.parametrize(
    "slots",
    [
        pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
async def test_every_slot_ends_once(tmp_path: Path, slots: int) -> None:
    """Answered, or failed for a reason that is named; no permit is lost, nothing waits for ever."""
    program = write_executable(tmp_path / "fake-python")
    settings: dict[str, Any] = {"engine": "vllm", "model": "m", "vllm_python": str(program), "limit": AT_ONCE}
    settings |= {"timeout_s": 2, "vllm_args": ["--notes", str(tmp_path), "--chaos", str(SEED)]}
    arguments = [f"--set=stage2.{key}={each if key == 'model' else json.dumps(each)}" for key, each in settings.items()]
    with spawned(["-m", "serving.workers.stage2_server", "--port", "0", *arguments], tmp_path) as daemon:
        config = load_config(overrides={"stage2.url": daemon.url}, environ={})
        ended = await ask_all(config, slots)
        state = await health(daemon.url)
        again = await ask_all(config, 2 * AT_ONCE)

    assert sorted(ended) == list(range(slots))
    reasons = Counter(ended.values())
    assert set(reasons) <= ENDS, reasons
    assert reasons["ok"] >= 0.9 * slots, reasons
    assert state["child_starts"] > 1, "the engine never died"
    assert (state["queue"]["running"], state["queue"]["waiting"]) == (0, 0)
    assert len(again) == 2 * AT_ONCE


async def ask_all(config: Config, slots: int) -> dict[int, str]:
    """Ask about so many slots, and say how each ended; some clients go away first and ask anew."""
    ended: dict[int, str] = {}
    permits, chance = asyncio.Semaphore(WINDOW), random.Random(SEED)
    async with Stage2Client(config.stage2, config.pipeline) as client, asyncio.TaskGroup() as group:

        async def one(slot: int, gone_after_s: float | None) -> None:
            async with permits:
                if gone_after_s is not None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(gone_after_s):
                            await ask(client, f"{slot}/gone")
                assert slot not in ended
                ended[slot] = await ask(client, f"{slot}")

        for slot in range(slots):
            goes = chance.random() < GOES_AWAY
            group.create_task(one(slot, chance.uniform(0, 0.05) if goes else None))
    return ended


async def ask(client: Stage2Client, key: str) -> str:
    """Ask once, as the orchestrator does: `ok`, or the code of what went wrong."""
    try:
        asked, _ = await client.evaluate(QUESTION, model="m", key=key)
    except ZroactError as error:
        return error.code
    if asked.answer is None:
        assert asked.problem is not None
        return asked.problem.code
    assert asked.answer.body["action"] == json.loads(ANSWER)["action"]
    return "ok"


async def health(url: str) -> dict[str, Any]:
    """What `/health` says once nothing is at work: replies are sent before permits are given back."""
    async with aiohttp.ClientSession() as http, asyncio.timeout(30):
        while True:
            async with http.get(f"{url}/health") as response:
                told: dict[str, Any] = await response.json()
            if not told["queue"]["running"]:
                return told
