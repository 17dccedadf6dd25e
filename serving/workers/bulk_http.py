"""HTTP for bodies of megabytes: the server's protocol, which can receive one straight into the memory it is used from.

uvicorn takes a body in pieces, and each is copied three times on its way to the application. For the pixels of a batch
that costs more than receiving them. Here the application may ask for the whole body at once (`whole_body`): then the
socket is read into one array, past the parser, which has seen the head and would only count. Everything else is
uvicorn's own; under another server `whole_body` reads piece by piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
import numpy as np
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pipeline_ver2.errors import RequestError

BULK_BYTES = 1_000_000
"""Bodies from this size on may be received at once."""

_EXTENSION = "zroact.whole_body"
_SCRATCH = 64 * 1024

Whole = Callable[[], Awaitable[memoryview]]


async def whole_body(request: Request, *, timeout_s: float) -> bytes | memoryview:
    """The whole body of a request whose announced length has been checked.

    Raises:
        RequestError: It did not arrive in time.
        ClientDisconnect: The client is gone.
    """
    receive: Whole | None = request.scope.get("extensions", {}).get(_EXTENSION, {}).get("receive")
    if receive is None:
        return await request.body()
    try:
        async with asyncio.timeout(timeout_s):
            return await receive()
    except TimeoutError as error:
        raise RequestError(f"the body did not arrive within {timeout_s:g} s") from error


class BulkProtocol(HttpToolsProtocol, asyncio.BufferedProtocol):
    """uvicorn's protocol, reading into buffers: a small one for the parser, or a whole body's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*args, **kwargs)
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._body: _Body | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the socket's next bytes go."""
        return self._scratch if self._body is None else self._body.missing

    def buffer_updated(self, nbytes: int) -> None:
        """So many have come."""
        if self._body is None:
            self.data_received(bytes(self._scratch[:nbytes]))
        elif self._body.grow(nbytes):
            self._body = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits for a body."""
        if self._body is not None:
            self._body.lose()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        """Offer to receive a large body at once."""
        before = self.cycle
        super().on_headers_complete()
        length = dict(self.headers).get(b"content-length", b"")
        if self.cycle is before or self.pipeline or not length.isdigit() or int(length) < BULK_BYTES:
            return
        cycle = self.cycle

        async def receive() -> memoryview:
            return await self._receive_whole(cycle, int(length))

        self.scope["extensions"] = {_EXTENSION: {"receive": receive}}

    async def _receive_whole(self, cycle: RequestResponseCycle, length: int) -> memoryview:
        """What the parser has passed on already, then the rest from the socket."""
        if cycle.disconnected:
            raise ClientDisconnect
        if cycle.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        body = _Body(length, cycle.body)
        cycle.body = bytearray()
        if cycle.more_body:
            await self._fill(body, cycle)
        cycle.message_event.set()  # `receive` says once that the body is over, then it waits for the client to go
        return body.whole

    async def _fill(self, body: _Body, cycle: RequestResponseCycle) -> None:
        kept, cycle.keep_alive = cycle.keep_alive, False  # an unfinished body leaves the connection useless
        self._body = body
        self.flow.resume_reading()
        try:
            await body.complete
        finally:
            self._body = None
        cycle.keep_alive, cycle.more_body = kept, False
        self.parser = httptools.HttpRequestParser(self)  # the old one still waits for the body
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)


class _Body:
    """A body on its way."""

    def __init__(self, length: int, begun: bytearray) -> None:
        self.whole = np.empty(length, np.uint8).data  # unlike a bytearray, not filled with zeros first
        self.whole[: len(begun)] = begun
        self._filled = len(begun)
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def missing(self) -> memoryview:
        """Where the rest goes."""
        return self.whole[self._filled :]

    def grow(self, count: int) -> bool:
        """So many bytes more are there; True when all are."""
        self._filled += count
        if self._filled < len(self.whole):
            return False
        if not self.complete.done():
            self.complete.set_result(None)
        return True

    def lose(self) -> None:
        """The rest will not come."""
        if not self.complete.done():
            self.complete.set_exception(ClientDisconnect())
