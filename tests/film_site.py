"""A web site on port 0 that films are fetched from, and that leads astray when asked to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

FILM = bytes(range(256)) * 20


@dataclass
class Site:
    """A small web site with one film, and what was asked of it."""

    content: bytes = FILM
    url: str = ""
    place: str = ""
    asked: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        """The site."""

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            self.asked.append(request.path_qs)
            self.hosts.append(request.headers["Host"])
            return await handler(request)

        app = web.Application(middlewares=[noted])
        app.add_routes(
            [
                web.get("/film.mp4", self._film),
                web.get("/lead", self._lead),
                web.get("/stream", self._stream),
                web.get("/cut", self._cut),
            ]
        )
        return app

    async def _film(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.content)

    async def _lead(self, request: web.Request) -> web.StreamResponse:
        """On to another place."""
        return web.Response(status=int(request.query.get("status", "302")), headers={"Location": request.query["to"]})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Pieces without an announced length, for ever or as many as are wanted."""
        reply = web.StreamResponse()
        await reply.prepare(request)
        try:
            for _ in range(int(request.query.get("pieces", "1000000"))):
                await reply.write(self.content)
                await asyncio.sleep(float(request.query.get("pause", "0")))
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise
        return reply

    async def _cut(self, request: web.Request) -> web.StreamResponse:
        """Half of what is announced, then nothing more."""
        reply = web.StreamResponse(headers={"Content-Length": str(len(self.content))})
        await reply.prepare(request)
        await reply.write(self.content[: len(self.content) // 2])
        assert request.transport is not None
        request.transport.close()
        return reply


@asynccontextmanager
async def film_site(content: bytes = FILM) -> AsyncIterator[Site]:
    """The site, with this film."""
    site = Site(content)
    runner = web.AppRunner(site.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    site.place = f"127.0.0.1:{runner.addresses[0][1]}"
    site.url = f"http://{site.place}"
    try:
        yield site
    finally:
        await runner.cleanup()
