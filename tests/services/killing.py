"""Kills at random moments of jobs, and what must hold afterwards, whatever was killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from pipeline_ver2.errors import DatabaseAway
from pipeline_ver2.results import JOURNAL_NAME, KeyframeRecord, SlotRecord, read_results
from serving.jobs import DataDir
from serving.store import JobStore
from tests.job_processes import children_of
from tests.openai_upstream import Upstream
from tests.services.job_server import PATIENCE_S, Server, process_of
from tests.services.postgres import Postgres
from tests.serving.conftest import enter

ACTIONS = ("stand", "walk", "run", "jump", "wave", "fall")
KEYFRAMES_A_SLOT, INTERVAL, FPS = 3, 11, 30
SETTLE_S = 0.1


class CountedEngine:
    """What stands behind the Stage 2 daemon: answers hang on the images alone, and every send is counted by slot."""

    def __init__(self, service_s: float) -> None:
        self._service_s = service_s
        self.sends: Counter[str] = Counter()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Count, take the time, answer; what is no slot, as the daemon's own question whether we are well, is not."""
        content = (await request.json())["messages"][-1]["content"]
        seed = zlib.crc32(json.dumps([part for part in content if part["type"] == "image_url"]).encode())
        told = re.search(r"Frame 1, t=([\d.]+) s", json.dumps(content))
        if told is not None:
            first_keyframe = round((float(told[1]) * FPS + 1) / INTERVAL)
            self.sends[f"{(first_keyframe - 1) // KEYFRAMES_A_SLOT}:{seed:08x}"] += 1
            await asyncio.sleep(self._service_s)
        text = json.dumps({"action": ACTIONS[seed % len(ACTIONS)], "description": f"{seed:08x}"})
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


class Started:
    """A process of this product that can be killed and started again."""

    def __init__(self, server: Server, command: str) -> None:
        self._server, self._command = server, command
        self._stack = ExitStack()
        self.process: subprocess.Popen[str] | None = None

    async def start(self, *options: str) -> None:
        """Start it, again if it has been killed; the loop goes on meanwhile, since the engine lives in it."""
        await self.stop()
        self.process = await asyncio.to_thread(self._stack.enter_context, self._server.run(self._command, *options))

    async def stop(self) -> None:
        """Stop it if it runs."""
        await asyncio.to_thread(self._stack.close)

    async def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


@dataclass(frozen=True)
class Expected:
    """What an undisturbed job of a clip found, and what the engine calls its slots."""

    keyframes: Mapping[int, Any]
    slots: Mapping[int, Any]
    keys: Mapping[int, str]


@dataclass(frozen=True)
class Kill:
    """Once so many records are in the journal and so much time has passed, kill this."""

    records: int
    delay_s: float
    victim: str


def plan_of(chance: random.Random, victims: Sequence[str], records: int) -> list[Kill]:
    """Each victim once, in any order, at moments from before the first record to after the last one."""
    moments = sorted(chance.randrange(records + 1) for _ in victims)
    order = chance.sample(list(victims), len(victims))
    return [Kill(moment, chance.uniform(0, 0.1), victim) for moment, victim in zip(moments, order, strict=True)]


@dataclass
class Site:
    """A data folder and the processes that work on it: `zroact up`, or workers beside stages that others run."""

    server: Server
    store: JobStore
    engine: CountedEngine
    processes: list[Started]
    ports: Mapping[str, int]
    postgres: Postgres | None = None
    hits: Counter[str] = field(default_factory=Counter)

    @property
    def data(self) -> DataDir:
        """Its data folder."""
        return DataDir(self.server.folder / "data")

    @property
    def stages_are_its_own(self) -> bool:
        """Whether the daemons die with the process."""
        return "api" in self.ports

    async def start(self) -> None:
        """Start every process."""
        for each in self.processes:
            await each.start()

    async def stop(self) -> None:
        """Stop every process."""
        for each in self.processes:
            await each.stop()

    async def submit(self, *clips: Path) -> list[str]:
        """Queue jobs; their ids. Without an API, whoever runs jobs finds them when it starts."""
        if self.stages_are_its_own:
            return [await self.server.post(clip) for clip in clips]
        before = len(list(self.data.jobs.iterdir()))
        ids = [f"job-{before + number}" for number in range(len(clips))]
        for job_id, clip in zip(ids, clips, strict=True):
            enter(self.data, self.store, job_id, clip, annotate=False)
        await self.start()
        return ids

    async def ended(self, job_id: str) -> str:
        """The state in which a job ends."""
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(self._has_ended, job_id):  # noqa: ASYNC110 - as everywhere here
                await asyncio.sleep(0.05)
        record = self.store.get(job_id)
        return f"{record.state} {record.error or ''}".strip()

    async def undisturbed(self, jobs: Sequence[str]) -> list[Expected]:
        """What jobs find when nothing is killed: every slot is sent once."""
        found: list[Expected] = []
        for job_id in jobs:
            assert await self.ended(job_id) == "succeeded"
            results = read_results(self.data.folder(job_id).path)
            keys = {slot.index: f"{slot.index}:{(slot.answer or {})['description']}" for slot in results.slots}
            found.append(Expected(_keyframes(results.keyframes), _slots(results.slots), keys))
        assert self.engine.sends == Counter(key for each in found for key in each.keys.values())
        self.forget()
        return found

    async def disturb(self, jobs: Mapping[str, Expected], plan: Sequence[Kill]) -> None:
        """Kill as planned while jobs run; moments are those of the first job."""
        first = next(iter(jobs))
        for kill in plan:
            await self.until_records(first, kill.records)
            await asyncio.sleep(kill.delay_s)
            if kill.victim == "postgres":
                await self._kill_database(kill.delay_s)
            else:
                await self.kill(kill.victim, jobs)

    async def until_records(self, job_id: str, count: int) -> None:
        """Wait for so many records in the journal of a job, or its end."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._records(job_id)) < count and not self._has_ended(job_id):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def recorded_slots(self, job_id: str) -> set[int]:
        """The slots that have a whole record."""
        return {record.index for record in self._records(job_id) if isinstance(record, SlotRecord)}

    async def kill(self, victim: str, jobs: Mapping[str, Expected]) -> None:
        """kill -9 of a daemon, `stage1` or `stage2`, of the first job's own process, `job`, or of whoever runs that.

        What was sent and has no record by then was hit.
        """
        recorded = {job_id: self.recorded_slots(job_id) for job_id in jobs}
        killed: Started | None = None
        if victim in {"stage1", "stage2"}:
            kill_if_alive(self._stage(victim))
        elif victim == "job":
            kill_if_alive(self._job_process(next(iter(jobs))))
        else:
            killed = self._runner(next(iter(jobs)))
            recorded = await self._kill(killed, jobs)
        await asyncio.sleep(SETTLE_S)
        if victim != "stage1":
            for job_id, expected in jobs.items():
                keys = (key for slot, key in expected.keys.items() if slot not in recorded[job_id])
                self.hits.update(key for key in keys if key in self.engine.sends)
        if killed is not None:
            await killed.start()

    async def _kill(self, killed: Started, jobs: Mapping[str, Expected]) -> dict[str, set[int]]:
        """Kill a process and wait for those that end with it; the slots that have a record then."""
        assert killed.process is not None
        doomed = children_of(killed.process.pid)
        await killed.kill()
        async with asyncio.timeout(PATIENCE_S):
            while any(Path(f"/proc/{process}").exists() for process in doomed):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.02)
        return {job_id: self.recorded_slots(job_id) for job_id in jobs}

    def check(self, job_id: str, expected: Expected, said: object) -> None:
        """The answers are those of an undisturbed job, one record a slot; only what was hit was sent again."""
        results = read_results(self.data.folder(job_id).path)
        assert _keyframes(results.keyframes) == expected.keyframes, said
        assert _slots(results.slots) == expected.slots, said
        assert self.server.slots(job_id) == Counter(list(expected.slots)), said
        for key in expected.keys.values():
            assert 1 <= self.engine.sends[key] <= 1 + self.hits[key], (said, key, self.engine.sends, self.hits)

    def forget(self) -> None:
        """Begin to count anew."""
        self.engine.sends.clear()
        self.hits.clear()

    async def _kill_database(self, away_s: float) -> None:
        assert self.postgres is not None
        self.postgres.kill()
        await asyncio.sleep(10 * away_s)
        await asyncio.to_thread(self.postgres.start)

    def _has_ended(self, job_id: str) -> bool:
        try:
            return self.store.get(job_id).has_ended
        except DatabaseAway:
            return False

    def _stage(self, stage: str) -> int | None:
        with suppress(LookupError):
            return process_of(stage, self.ports[stage])
        return None

    def _job_process(self, job_id: str) -> int | None:
        """The process that has the lock of a job's folder open."""
        lock = self.data.folder(job_id).path / ".worker.lock"
        for each in self.processes:
            assert each.process is not None
            for child in children_of(each.process.pid):
                with suppress(OSError):
                    if any(fd.readlink() == lock for fd in Path(f"/proc/{child}/fd").iterdir()):
                        return child
        return None

    def _runner(self, job_id: str) -> Started:
        """Whose child runs a job, else the first."""
        child = self._job_process(job_id)
        for each in self.processes:
            if each.process is not None and child in children_of(each.process.pid):
                return each
        return self.processes[0]

    def _records(self, job_id: str) -> list[KeyframeRecord | SlotRecord]:
        records: list[KeyframeRecord | SlotRecord] = []
        with suppress(OSError):
            for line in (self.data.folder(job_id).path / JOURNAL_NAME).read_bytes().splitlines()[1:]:
                with suppress(ValidationError):  # torn, as a kill leaves it
                    kind = SlotRecord if b'"type":"slot"' in line else KeyframeRecord
                    records.append(kind.model_validate_json(line))
        return records


def kill_if_alive(process: int | None) -> None:
    """kill -9, unless it has ended already."""
    with suppress(ProcessLookupError):
        if process is not None:
            os.kill(process, signal.SIGKILL)


def engine_settings(upstream: Upstream) -> dict[str, Any]:
    """Settings of a Stage 2 daemon that asks the counted engine."""
    return {"engine": "remote", "remote_url": f"{upstream.url}/v1", "start_timeout_s": PATIENCE_S}


def _keyframes(records: Sequence[KeyframeRecord]) -> dict[int, Any]:
    return {record.key_index: (record.state, record.time_s, record.detections) for record in records}


def _slots(records: Sequence[SlotRecord]) -> dict[int, Any]:
    return {record.index: (record.state, record.key_indices, record.answer) for record in records}
