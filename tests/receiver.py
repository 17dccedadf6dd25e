"""A small real HTTP server that is posted to, and does with it what it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from pipeline_ver2.webhook import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature

PATIENCE_S = 60.0

Rule = Callable[[int], Awaitable[web.StreamResponse | None]]
"""Gets how many posts came before; None = take it."""


@dataclass(frozen=True)
class Post:
    """What came in one request."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """What it is called."""
        return self.headers[ID_HEADER]

    @property
    def content(self) -> Any:  # noqa: ANN401 - any JSON
        """Its JSON."""
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """Whether it comes from somebody who has the secret."""
        expected = signature(secret, self.id, int(self.headers[TIMESTAMP_HEADER]), self.body)
        return self.headers.get(SIGNATURE_HEADER) == expected


@dataclass
class Receiver:
    """The server: its URL, what came, and the rule for what to do about it."""

    url: str = ""
    rule: Rule | None = None
    posts: list[Post] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.StreamResponse:
        """Keep a request and apply the rule."""
        before = len(self.posts)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.posts.append(Post(headers, await request.read()))
        self.news.set()
        planted = None if self.rule is None else await self.rule(before)
        return planted or web.Response(status=204)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for posts until it is so; a bounded wait."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.news.clear()
                await self.news.wait()


def always(status: int, **headers: str) -> Rule:
    """Reply with a status, whatever comes."""

    async def reply(_before: int) -> web.StreamResponse:
        return web.Response(status=status, headers=headers)

    return reply


async def hang(_before: int) -> None:
    """Never reply."""
    await asyncio.Event().wait()


@asynccontextmanager
async def receiver(rule: Rule | None = None, port: int = 0) -> AsyncIterator[Receiver]:
    """A server on a free port, or on one that was free a moment ago."""
    server = Receiver(rule=rule)
    app = web.Application()
    app.add_routes([web.post("/hook", server.take)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield server
    finally:
        await runner.cleanup()
