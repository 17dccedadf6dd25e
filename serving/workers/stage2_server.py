"""The Stage 2 daemon: a vision-language model behind the OpenAI chat API, and `/evaluate` for people (port 8002)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from pipeline_ver2.config import Config
from pipeline_ver2.errors import ZroactError
from pipeline_ver2.prompts import check_settings
from pipeline_ver2.wire import (
    SERVER_TIMING_HEADER,
    EvaluateReply,
    EvaluateRequest,
    error_body,
    read_json,
    server_timing,
)
from serving import demo
from serving.workers.chat import Chat, parse_chat
from serving.workers.daemon import (
    ErrorReply,
    IdempotencyCache,
    RequestContext,
    cancel_when_gone,
    create_app,
    give_up,
    request_context,
)
from serving.workers.guidance import check_guidable
from serving.workers.process import daemon_main
from serving.workers.stage2_choice import build_engine
from serving.workers.stage2_engine import Engine
from serving.workers.stage2_evaluate import evaluate
from serving.workers.stage2_readiness import Readiness
from serving.workers.stage2_service import Served, Stage2Service, StreamTimes

logger = logging.getLogger(__name__)

QUICK_BYTES = 1_000_000
_REPLAYED = 256
_SPARE_BODIES = 16
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply} for status in (403, 404, 413, 422, 429, 502, 503, 504)
}
_OPENAI_REFUSALS = {**_REFUSALS, 400: _REFUSALS[422]}


def build_app(config: Config, engine: Engine | None = None) -> FastAPI:
    """The daemon's application.

    Args:
        config: The whole configuration; Stage 2 also needs the prompt and the media roots.
        engine: Used instead of the configured one, for tests.

    Raises:
        ConfigError: The engine can be seen to be impossible.
    """
    check_settings(config.pipeline)
    registry = CollectorRegistry()
    engine = engine or build_engine(config.stage2)
    if engine.name in ("transformers", "vllm"):
        check_guidable(config.pipeline.answer_schema)
    service = Stage2Service(config.stage2, engine, registry)
    readiness = Readiness(service.engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(_start(app, service.engine))
        try:
            yield
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await readiness.close()
            await service.engine.close()

    app = create_app(
        "ZroAct Stage 2",
        lifespan=lifespan,
        ready=readiness.check,
        registry=registry,
        max_body_mb=config.stage2.max_body_mb,
        max_bodies=config.stage2.most_at_once + config.stage2.max_queue + _SPARE_BODIES,
        more_metrics=service.engine.metrics,
    )
    _add_openai_routes(app, service, config)
    _add_people_routes(app, service, config)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """The command `python -m serving.workers.stage2_server`."""
    return daemon_main("stage2", build_app, argv)


async def _start(app: FastAPI, engine: Engine) -> None:
    """Load while the daemon already answers; stop the daemon if that can never succeed."""
    try:
        await engine.start()
    except ZroactError as error:
        give_up(app, error)
    else:
        logger.info("VLM daemon active: engine %s, model %s", engine.name, engine.model or "as served")


def _add_openai_routes(app: FastAPI, service: Stage2Service, config: Config) -> None:
    cache: IdempotencyCache[Served] = IdempotencyCache(_REPLAYED)

    @app.post("/v1/chat/completions", tags=["openai"], responses=_OPENAI_REFUSALS, openapi_extra=_CHAT_DOCS)
    async def chat_completions(request: Request) -> Response:
        """Answer a chat, in one piece or as server-sent events. Never sent to the engine twice."""
        context = request_context(request)
        raw = await request.body()
        read = partial(_read_chat, raw, config.stage2.max_tokens)
        chat, digest = read() if len(raw) <= QUICK_BYTES else await asyncio.to_thread(read)
        if chat.stream:
            return await _streamed(request, service, chat, context)
        # A key that comes with another body is another request.
        key = None if context.idempotency_key is None else (context.idempotency_key, digest)
        served = await cancel_when_gone(request, cache.run(key, lambda: service.complete(chat, context)))
        timing = server_timing(served.queue_s, served.run_s)
        return JSONResponse(served.completion, headers={SERVER_TIMING_HEADER: timing})

    @app.get("/v1/models", tags=["openai"], responses=_REFUSALS)
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        model = await service.engine.served_model()
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "zroact", "engine": service.engine.name}
        if service.engine.labels is not None and service.engine.name != "emulated":
            entry["note"] = demo.NOTE
        return {"object": "list", "data": [entry]}


def _add_people_routes(app: FastAPI, service: Stage2Service, config: Config) -> None:
    cache: IdempotencyCache[tuple[EvaluateReply, float, float]] = IdempotencyCache(_REPLAYED)

    @app.post("/evaluate", tags=["people"], responses=_REFUSALS)
    async def evaluate_slot(body: EvaluateRequest, request: Request, response: Response) -> EvaluateReply:
        """Ask about the images of one slot; at most two sends to the engine."""
        context = request_context(request)
        key = None
        if context.idempotency_key is not None:
            key = (context.idempotency_key, await asyncio.to_thread(_digest, body))
        work = cache.run(key, lambda: evaluate(body, service, config, context))
        reply, queue_s, run_s = await cancel_when_gone(request, work)
        response.headers[SERVER_TIMING_HEADER] = server_timing(queue_s, run_s)
        return reply

    @app.get("/health", tags=["health"])
    async def health() -> dict[str, Any]:
        """The engine, its model and the queue, without asking the engine."""
        engine = service.engine
        queue = asdict(service.scheduler.stats())
        return {"status": "alive", "engine": engine.name, "model": engine.model, "queue": queue, **engine.state()}


def _read_chat(raw: bytes, default_max_tokens: int) -> tuple[Chat, str]:
    """The checked chat of a body, and the body's digest. Blocks: bodies have megabytes."""
    return parse_chat(read_json(raw), default_max_tokens=default_max_tokens), hashlib.sha256(raw).hexdigest()


def _digest(body: EvaluateRequest) -> str:
    return hashlib.sha256(body.model_dump_json().encode()).hexdigest()


async def _streamed(request: Request, service: Stage2Service, chat: Chat, context: RequestContext) -> Response:
    """Wait for the first chunk, so that what fails before it still has its status, then hand over."""
    times = StreamTimes()
    chunks = service.stream(chat, context, times)

    async def first() -> dict[str, Any]:
        return await anext(chunks)

    opening = await cancel_when_gone(request, first())
    timing = server_timing(times.queue_s, times.run_s)
    return _EventStream(opening, chunks, headers={SERVER_TIMING_HEADER: timing})


async def _events(opening: dict[str, Any], chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncIterator[bytes]:
    try:
        yield _event(opening)
        async for chunk in chunks:
            yield _event(chunk)
        yield b"data: [DONE]\n\n"
    except ZroactError as error:
        logger.warning("a stream broke off: %s: %s", error.code, error)
        yield _event(error_body(error))


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


class _EventStream(StreamingResponse):
    """Server-sent events that are closed, and their engine stopped, as soon as the client is gone."""

    def __init__(
        self, opening: dict[str, Any], chunks: AsyncGenerator[dict[str, Any], None], headers: dict[str, str]
    ) -> None:
        super().__init__(
            _events(opening, chunks), headers={**headers, "Cache-Control": "no-cache"}, media_type="text/event-stream"
        )
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; plain task cancellation, so that what the generator awaits while closing is not cancelled again."""
        try:
            with suppress(ClientDisconnect):
                await cancel_when_gone(Request(scope, receive), self.stream_response(send))
        finally:
            await self._chunks.aclose()


_CHAT_DOCS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["model", "messages"],
                    "description": "An OpenAI chat completion request; images as data: URLs only.",
                }
            }
        },
    }
}


if __name__ == "__main__":
    sys.exit(main())
