"""Scripted stages: small real HTTP servers on port 0 that speak the machines' contracts and misbehave when told to."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

from pipeline_ver2 import wire

LABELS = ("stand", "walk", "run")

Rule = Callable[[web.Request, str, int], Awaitable[web.StreamResponse | None]]
"""Gets a request, its key without the variant ("batch-2", "slot-0") and how often that key came; None = behave."""


async def behave(_request: web.Request, _key: str, _time: int) -> None:
    """The rule of a stage that works."""


@dataclass
class StandIn:
    """One scripted stage: what came, how many at once, and the rule for what to do about it."""

    rule: Rule = behave
    seen: Counter[str] = field(default_factory=Counter)
    keys: list[str] = field(default_factory=list)
    clients: set[str] = field(default_factory=set)
    bodies: list[Any] = field(default_factory=list)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    most_running: int = 0
    url: str = ""
    unready: int | None = None
    """How many times `/readyz` still says 503; None = this stand-in has no `/readyz`."""

    async def readyz(self, _request: web.Request) -> web.Response:
        """Ready, once it was asked often enough."""
        if self.unready is None:
            return web.Response(status=404)
        self.unready -= 1
        return refusal(503, "stage_unreachable") if self.unready >= 0 else web.json_response({})

    async def scripted(self, request: web.Request) -> web.StreamResponse | None:
        """Count the request and apply the rule."""
        full = request.headers[wire.IDEMPOTENCY_HEADER]
        key = full.split("/")[1]
        self.seen[key] += 1
        self.keys.append(full)
        self.clients.add(request.headers[wire.CLIENT_HEADER])
        self.running += 1
        self.idle.clear()
        self.most_running = max(self.most_running, self.running)
        try:
            return await self.rule(request, key, self.seen[key])
        finally:
            self.running -= 1
            if self.running == 0:
                self.idle.set()


@dataclass
class Stages:
    """Both stand-ins."""

    stage1: StandIn
    stage2: StandIn

    def overrides(self) -> dict[str, Any]:
        """Configuration that leads clients here."""
        return {"stage1.url": self.stage1.url, "stage2.url": self.stage2.url}


@asynccontextmanager
async def stand_ins(*, image_size: tuple[int, int] = (32, 48), found: int = 1) -> AsyncIterator[Stages]:
    """Both stages on free ports; Stage 1 finds `found` walking persons in every clip, Stage 2 answers "walk"."""
    stages = Stages(StandIn(), StandIn())
    detector, answerer = _detector(stages.stage1, image_size, found), _answerer(stages.stage2)
    async with _served(detector, stages.stage1), _served(answerer, stages.stage2):
        yield stages


def reset(request: web.Request) -> None:
    """Drop the connection without a reply."""
    if request.transport is not None:
        request.transport.abort()


def refusal(status: int, code: str, *, retry_after_s: int | None = None) -> web.Response:
    """An error reply in the form of this project's servers."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response({"error": {"code": code, "message": "planted"}}, status=status, headers=headers)


def completion(content: str | None, *, finish_reason: str = "stop") -> web.Response:
    """A chat completion with this text."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    return web.json_response({"choices": [choice], "usage": {"total_tokens": 3}})


def answer(action: str = "walk") -> web.Response:
    """A valid answer."""
    return completion(json.dumps({"action": action, "description": "One person."}))


@asynccontextmanager
async def _served(app: web.Application, stand_in: StandIn) -> AsyncIterator[None]:
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield
    finally:
        await runner.cleanup()


def _detector(stand_in: StandIn, image_size: tuple[int, int], found: int) -> web.Application:
    async def describe(_request: web.Request) -> web.Response:
        inputs = [{"name": "clips", "datatype": "UINT8", "shape": [-1, 16, *image_size, 3]}]
        parameters = {"labels": list(LABELS)}
        content = {"name": "yowov3", "platform": "stand-in", "inputs": inputs, "parameters": parameters}
        return web.json_response(content)

    async def infer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        tensors, _ = wire.unpack_tensors(body, int(request.headers[wire.OIP_HEAD_LENGTH_HEADER]), kind="inputs")
        stand_in.bodies.append(tensors["clips"])
        planted = await stand_in.scripted(request)
        return planted or found_reply(len(tensors["clips"]), found)

    app = web.Application(client_max_size=1 << 30)
    app.add_routes([web.get("/v2/models/yowov3", describe), web.post("/v2/models/yowov3/infer", infer)])
    app.add_routes([web.get("/v2/health/ready", healthy), web.get("/readyz", stand_in.readyz)])
    return app


def found_reply(clips: int, found: int, *, status: int = 0, classes: int = 3) -> web.Response:
    """An infer reply: in every clip `found` persons, each over the left half of the frame, walking at 0.75."""
    parts, head_length = wire.pack_tensors(
        {
            "status": np.full((clips, 1), status, np.int32),
            "num_detections": np.full((clips, 1), found, np.int32),
            "boxes": np.tile(np.array([0, 0, 0.5, 1], np.float32), (clips, found, 1)),
            "scores": np.tile(np.array([0.1, 0.75, 0.2, 0.1][:classes], np.float32), (clips, found, 1)),
        },
        kind="outputs",
    )
    return web.Response(body=b"".join(parts), headers={wire.OIP_HEAD_LENGTH_HEADER: str(head_length)})


def _answerer(stand_in: StandIn) -> web.Application:
    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "stand-in-vlm"}]})

    async def chat(request: web.Request) -> web.StreamResponse:
        stand_in.bodies.append(await request.json())
        planted = await stand_in.scripted(request)
        return planted or answer()

    app = web.Application(client_max_size=1 << 28)
    app.add_routes([web.get("/readyz", stand_in.readyz)])
    app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", chat), web.get("/health", healthy)])
    return app


async def healthy(_request: web.Request) -> web.Response:
    """A health endpoint."""
    return web.json_response({})


async def hang(_request: web.Request, _key: str, _time: int) -> None:
    """A rule that never answers."""
    await asyncio.Event().wait()
