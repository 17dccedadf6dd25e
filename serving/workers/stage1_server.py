"""The Stage 1 daemon: machines speak the Open Inference Protocol to it, people speak JSON."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry

from pipeline_ver2.config import Config, Stage1Config
from pipeline_ver2.wire import OIP_HEAD_LENGTH_HEADER, SERVER_TIMING_HEADER, DetectReply, DetectRequest, server_timing
from serving.workers.bulk_http import whole_body
from serving.workers.daemon import BODY_TIMEOUT_S, ErrorReply, cancel_when_gone, create_app, request_context
from serving.workers.postprocess import ClipOutput
from serving.workers.process import daemon_main
from serving.workers.stage1_engine import ModelInfo
from serving.workers.stage1_oip import (
    MODEL_NAME,
    MODEL_VERSION,
    InferRequest,
    OipErrorReply,
    model_config,
    model_metadata,
    read_infer,
    server_metadata,
    write_infer,
)
from serving.workers.stage1_service import Stage1Service, described

_MODEL = f"/v2/models/{MODEL_NAME}"
_VERSION = f"{_MODEL}/versions/{MODEL_VERSION}"
_SHORT_HEAD_DIGITS = 4
_SAID = {
    413: "The body is over the limit.",
    400: "The request does not fit.",
    422: "The request does not fit.",
    429: "The queue is full; see Retry-After.",
    503: "Not ready, or the engine failed, or the deadline came first.",
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorReply, "description": said} for code, said in _SAID.items() if code != 400
}
_OIP_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": OipErrorReply, "description": said} for code, said in _SAID.items() if code != 422
}
_INFER_BODY = {
    "requestBody": {
        "required": True,
        "description": "One tensor `clips`, UINT8 [B,T,H,W,3] RGB; parameters `threshold` and `nms_iou`.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


def build_app(config: Config) -> FastAPI:
    """The daemon's application; the model is loaded when it starts."""
    registry = CollectorRegistry()
    service = Stage1Service(config, registry)

    app = create_app(
        "ZroAct Stage 1",
        lifespan=service.running,
        ready=service.ready,
        registry=registry,
        max_body_mb=config.stage1.max_body_mb,
        max_bodies=2 * (config.stage1.max_queue + 1),
    )
    _add_inference(app, service)  # first, since routes are tried in their order
    _add_metadata(app, service)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """`zroact stage1` and `python -m serving.workers.stage1_server`."""
    return daemon_main("stage1", build_app, argv)


class _BareRoute(APIRoute):
    """A route whose function reads the request and makes the reply by itself, with nothing in between."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's seam for this."""
        return self.endpoint


def _add_metadata(app: FastAPI, service: Stage1Service) -> None:
    @app.get("/health", tags=["people"])
    async def health() -> dict[str, Any]:
        """What runs here, and how busy it is."""
        info = service.loaded
        return {
            "status": "loading" if info is None else "ready",
            "engine": service.config.engine,
            **({} if info is None else described(info)),
            "queue": {
                "running": service.queue.running,
                "waiting": service.queue.waiting,
                "max": service.queue.max_waiting,
            },
        }

    @app.get("/v2/health/live", tags=["open inference protocol"])
    async def live() -> dict[str, bool]:
        """The process answers."""
        return {"live": True}

    @app.get("/v2/health/ready", tags=["open inference protocol"], responses={503: _OIP_REFUSALS[503]})
    @app.get(f"{_MODEL}/ready", tags=["open inference protocol"], responses={503: _OIP_REFUSALS[503]})
    @app.get(f"{_VERSION}/ready", include_in_schema=False)
    async def model_ready() -> dict[str, Any]:
        """The model is loaded and runs clips."""
        await service.ready()
        return {"name": MODEL_NAME, "ready": True}

    @app.get("/v2", tags=["open inference protocol"])
    async def server() -> dict[str, Any]:
        """The server's metadata."""
        return server_metadata()

    @app.get(_MODEL, tags=["open inference protocol"], responses={503: _OIP_REFUSALS[503]})
    @app.get(_VERSION, include_in_schema=False)
    async def model() -> dict[str, Any]:
        """The model's metadata; `parameters` names its labels."""
        return model_metadata(service.detector.info, service.config)

    @app.get(f"{_MODEL}/config", tags=["open inference protocol"], responses={503: _OIP_REFUSALS[503]})
    @app.get(f"{_VERSION}/config", include_in_schema=False)
    async def configuration() -> dict[str, Any]:
        """The model's configuration as Triton's clients read it."""
        return model_config(service.detector.info, service.config)


def _add_inference(app: FastAPI, service: Stage1Service) -> None:
    bare = APIRouter(route_class=_BareRoute)

    @bare.post(f"{_VERSION}/infer", include_in_schema=False)
    @bare.post(
        f"{_MODEL}/infer",
        tags=["open inference protocol"],
        response_class=Response,
        responses=_OIP_REFUSALS,
        openapi_extra=_INFER_BODY,
    )
    async def infer(request: Request) -> Response:
        """Find persons and actions at the last frame of each clip."""
        with service.counting_rejections():
            context, info = request_context(request), service.detector.info
            with service.queue.arriving():
                body = await whole_body(request, timeout_s=BODY_TIMEOUT_S)
                asked = await _read(body, request, service.config, info)
            timed = await cancel_when_gone(request, service.infer(asked, context, body))
        content, headers, media_type = await _write(asked, timed.value)
        headers[SERVER_TIMING_HEADER] = server_timing(timed.queue_s, timed.run_s)
        return Response(content, headers=headers, media_type=media_type)

    app.include_router(bare)

    @app.post("/detect", tags=["people"], responses=_REFUSALS)
    async def detect(request: Request, asked: DetectRequest, response: Response) -> DetectReply:
        """Find persons and actions in clips of files or base64 pictures; boxes in pixels of those frames."""
        with service.counting_rejections():
            work = service.detect(asked, request_context(request), await request.body())
            reply, timed = await cancel_when_gone(request, work)
        if timed is not None:
            response.headers[SERVER_TIMING_HEADER] = server_timing(timed.queue_s, timed.run_s)
        return reply


async def _read(body: bytes | memoryview, request: Request, config: Stage1Config, info: ModelInfo) -> InferRequest:
    """Check the body of an infer request: at once if its head is short, in a thread if it holds tensors as JSON."""
    read = partial(read_infer, body, request.headers, info, config)
    head_length = request.headers.get(OIP_HEAD_LENGTH_HEADER, "")
    if head_length.isdecimal() and len(head_length) <= _SHORT_HEAD_DIGITS:
        return read()
    return await asyncio.to_thread(read)


async def _write(asked: InferRequest, outputs: Sequence[ClipOutput]) -> tuple[bytes, dict[str, str], str]:
    """The reply, see `write_infer`: at once if all of it is binary, in a thread if numbers become JSON."""
    if all(asked.binary.values()):
        return write_infer(asked, outputs)
    return await asyncio.to_thread(write_infer, asked, outputs)


if __name__ == "__main__":
    sys.exit(main())
