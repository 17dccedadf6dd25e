"""A web site on port 0 that films are fetched from, and that leads astray when asked to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

FILM = bytes(range(256)) * 20


@dataclass
class Site:
    """A small web site, and what was asked of it."""

    url: str = ""
    place: str = ""
    asked: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def film_site(content: bytes = FILM) -> AsyncIterator[Site]:
    """The site, with this film."""
    site = Site()

    async def film(request: web.Request) -> web.StreamResponse:
        return web.Response(body=content)

    async def lead(request: web.Request) -> web.StreamResponse:
        return web.Response(status=int(request.query.get("status", "302")), headers={"Location": request.query["to"]})

    async def stream(request: web.Request) -> web.StreamResponse:
        """Pieces without an announced length, for ever or as many as are wanted."""
        reply = web.StreamResponse()
        await reply.prepare(request)
        try:
            for _ in range(int(request.query.get("pieces", "1000000"))):
                await reply.write(content)
                await asyncio.sleep(float(request.query.get("pause", "0")))
        except (ConnectionError, asyncio.CancelledError):
            site.gone.set()
            raise
        return reply

    async def cut(request: web.Request) -> web.StreamResponse:
        """Half of what is announced, then nothing more."""
        reply = web.StreamResponse(headers={"Content-Length": str(len(content))})
        await reply.prepare(request)
        await reply.write(content[: len(content) // 2])
        assert request.transport is not None
        request.transport.close()
        return reply

    async def missing(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=404)

    @web.middleware
    async def noted(request: web.Request, handler: Any) -> web.StreamResponse:  # noqa: ANN401 - aiohttp's own type
        site.asked.append(request.path_qs)
        site.hosts.append(request.headers["Host"])
        reply: web.StreamResponse = await handler(request)
        return reply

    app = web.Application(middlewares=[noted])
    app.add_routes(
        [
            web.get("/film.mp4", film),
            web.get("/lead", lead),
            web.get("/stream", stream),
            web.get("/cut", cut),
            web.get("/missing", missing),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    site.place = f"127.0.0.1:{runner.addresses[0][1]}"
    site.url = f"http://{site.place}"
    try:
        yield site
    finally:
        await runner.cleanup()
