"""What a daemon says of the traces its requests belong to."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from pipeline_ver2.errors import EngineFailed
from pipeline_ver2.trace_context import TRACEPARENT_HEADER, TraceContext
from serving.workers.daemon import create_app
from tests.servers import served


@asynccontextmanager
async def nothing(_app: FastAPI) -> AsyncIterator[None]:
    """Own nothing."""
    yield


async def ready() -> None:
    """At once."""


@pytest.mark.parametrize("sent", [True, False])
async def test_warnings_name_the_trace(sent: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001
    """And the span, so that the log of a daemon can be found from the job; without one they are as they were."""
    app = create_app("test", lifespan=nothing, ready=ready, registry=CollectorRegistry(), max_body_mb=1, max_bodies=1)

    @app.get("/fail")
    async def fail() -> None:
        raise EngineFailed("out of order")

    asking = TraceContext.new()
    headers = {TRACEPARENT_HEADER: asking.header} if sent else {}
    with caplog.at_level(logging.WARNING), served(app) as url:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/fail", headers=headers) as reply:
            assert reply.status == 503
    told = f" (trace {asking.trace_id}, span {asking.span_id})" if sent else ""
    assert f"GET /fail: engine_failed: out of order{told}" in caplog.messages
