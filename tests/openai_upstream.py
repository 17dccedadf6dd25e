"""A server that speaks OpenAI, well or badly, for what stands in front of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
COMPLETION = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}


class Upstream:
    """Answers chats as told, and keeps their bodies."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer
        self.has_health = True
        self.model_ids = ["first", "second"]
        self.bodies: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.url = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Keep the body, answer."""
        self.bodies.append(await request.json())
        try:
            return web.json_response(COMPLETION) if self.answer is None else await self.answer(request)
        except asyncio.CancelledError:
            self.gone.set()
            raise

    async def health(self, _request: web.Request) -> web.Response:
        """Well, or no such page."""
        return web.Response(status=200 if self.has_health else 404)

    async def models(self, _request: web.Request) -> web.Response:
        """What is listed."""
        return web.json_response({"object": "list", "data": [{"id": model} for model in self.model_ids]})


@asynccontextmanager
async def upstream(answer: Answer | None = None) -> AsyncIterator[Upstream]:
    """The server, listening."""
    made = Upstream(answer)
    app = web.Application(client_max_size=1 << 26)
    app.add_routes(
        [
            web.post("/v1/chat/completions", made.chat),
            web.get("/health", made.health),
            web.get("/v1/models", made.models),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


def replying(status: int, body: object, **headers: str) -> Answer:
    """An answer that is always this."""

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers=headers)

    return answer


def streaming(*events: str) -> Answer:
    """An answer of these server-sent events."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {event}\n\n".encode())
        return response

    return answer


async def hang(_request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    return web.Response()


async def drop(request: web.Request) -> web.StreamResponse:
    """Close the connection without a word."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def cut(request: web.Request) -> web.StreamResponse:
    """Promise more than comes."""
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"{")
    return await drop(request)


def chunk(text: str) -> str:
    """One chunk, as text."""
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def error(code: object, message: str = "because") -> dict[str, Any]:
    """An error body."""
    return {"error": {"code": code, "message": message}}
