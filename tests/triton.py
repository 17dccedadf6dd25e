"""A server on port 0 that answers as Triton does where Triton differs from this project's Stage 1 daemon.

It answers 400 to every path it does not know, to readiness while something loads and to requests for a model that is
not loaded; its metadata has no `parameters`; its errors are `{"error": text}`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from pipeline_ver2 import wire
from tests.stand_ins import found_reply

UNKNOWN = "Request for unknown model: 'yowov3' is not found"
NOT_READY = "Request for unknown model: 'yowov3' version 1 is not at ready state"


@dataclass
class Triton:
    """The server: what it is told to do and what it has seen."""

    shape: list[int] = field(default_factory=lambda: [-1, 16, 32, 48, 3])
    classes: int = -1
    away: int = 0
    """How many questions after the model's readiness still say no."""
    refusals: list[tuple[int, str]] = field(default_factory=list)
    """Status and text for the next infer requests; a 400 takes the model away for two questions."""
    clips: list[int] = field(default_factory=list)
    parameters: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        """Any request."""
        self.paths.append(request.path)
        if request.path == "/v2/health/ready":
            return web.Response()
        if request.path == "/v2/models/yowov3/ready":
            self.away -= 1
            return web.Response(status=400 if self.away >= 0 else 200)
        if request.path == "/v2/models/yowov3":
            return _error(400, UNKNOWN) if self.away > 0 else web.json_response(self._metadata())
        if request.path == "/v2/models/yowov3/infer":
            return await self._infer(request)
        return web.Response(status=400)

    def _metadata(self) -> dict[str, Any]:
        outputs = {"status": [-1, 1], "num_detections": [-1, 1], "boxes": [-1, -1, 4], "scores": [-1, -1, self.classes]}
        return {
            "name": "yowov3",
            "versions": ["1"],
            "platform": "python",
            "inputs": [{"name": "clips", "datatype": "UINT8", "shape": self.shape}],
            "outputs": [
                {"name": name, "datatype": "FP32" if len(shape) == 3 else "INT32", "shape": shape}
                for name, shape in outputs.items()
            ],
        }

    async def _infer(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.refusals:
            status, text = self.refusals.pop(0)
            self.away = 2 if status == 400 else 0
            return _error(status, text)
        if request.content_length != len(body) or wire.OIP_HEAD_LENGTH_HEADER not in request.headers:
            return _error(400, "missing content length")
        tensors, head = wire.unpack_tensors(body, int(request.headers[wire.OIP_HEAD_LENGTH_HEADER]), kind="inputs")
        if [("clips", array.shape[1:]) for array in tensors.values()] != [("clips", (16, 32, 48, 3))]:
            return _error(400, f"unexpected shape for input 'clips': {[array.shape for array in tensors.values()]}")
        if not all(isinstance(value, str | int | float) for value in head["parameters"].values()):
            return _error(400, "a parameter has invalid type")
        self.clips.append(len(tensors["clips"]))
        self.parameters.append(head["parameters"])
        return found_reply(len(tensors["clips"]), 1)


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


@asynccontextmanager
async def triton(**settings: Any) -> AsyncIterator[Triton]:  # noqa: ANN401 - the fields of the class
    """The server, running."""
    server = Triton(**settings)
    app = web.Application(client_max_size=1 << 28)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
