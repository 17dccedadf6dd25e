"""JSON bodies of the daemons: read strictly, so that what comes in can be logged, echoed and passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from pipeline_ver2.wire import read_json

_SHORT_BYTES = 65_536


class JsonRoute(APIRoute):
    """A route whose JSON body is read by `read_json`, in a thread if it is long."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The route's handler, given such requests."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handle_strictly


class _Request(Request):
    async def json(self) -> Any:  # noqa: ANN401 - any JSON
        body = await self.body()
        return read_json(body) if len(body) <= _SHORT_BYTES else await asyncio.to_thread(read_json, body)
