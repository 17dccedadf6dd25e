"""HTTP as the clients see it: what is waited for, what counts as a send, and how foreign errors come out."""

from __future__ import annotations

from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from pipeline_ver2.errors import (
    BadReply,
    DeadlineShed,
    EngineFailed,
    QueueFull,
    RequestError,
    StageError,
    StageTimeout,
    StageUnreachable,
    ZroactError,
)
from pipeline_ver2.stage_clients import Stage1Client
from tests.pipeline_ver2.conftest import settings_for
from tests.stand_ins import Stages, hang, refusal, reset

CLIP = np.zeros((16, 32, 48, 3), np.uint8)


def stage1_client(stages: Stages, *, retry_for_s: float = 0, **overrides: Any) -> Stage1Client:  # noqa: ANN401
    """A client of the scripted Stage 1."""
    return Stage1Client(settings_for(stages, **overrides).stage1, retry_for_s=retry_for_s)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (429, "queue_full", QueueFull),
        (503, "stage_unreachable", StageUnreachable),
        (503, "", StageUnreachable),
        (503, "engine_failed", EngineFailed),
        (503, "shed_deadline", DeadlineShed),
        (500, "internal", EngineFailed),
        (502, "", EngineFailed),
        (504, "", StageTimeout),
        (422, "bad_request", RequestError),
        (404, "", RequestError),
    ],
)
async def test_every_status_has_its_error(stages: Stages, status: int, code: str, expected: type[ZroactError]) -> None:
    """Our servers are understood by code, stand-ins by status; the message keeps what was said."""

    async def refuse(_request: web.Request, _key: str, _time: int) -> web.Response:
        return refusal(status, code)

    stages.stage1.rule = refuse
    async with stage1_client(stages) as client:
        with pytest.raises(expected, match=f"answered {status}: planted") as caught:
            await client.detect([CLIP], key="job/batch-0")

    assert type(caught.value) is expected


@pytest.mark.fault("O2")
@pytest.mark.fault("O3")
async def test_lost_and_late_replies_are_sends(stages: Stages) -> None:
    """A dropped connection is EngineFailed, silence is StageTimeout; each is sent twice at most."""

    async def drop(request: web.Request, _key: str, _time: int) -> None:
        reset(request)

    stages.stage1.rule = drop
    async with stage1_client(stages, stage1__timeout_s=0.2) as client:
        with pytest.raises(EngineFailed, match="connection lost"):
            await client.detect([CLIP], key="job/batch-0")
        stages.stage1.rule = hang
        with pytest.raises(StageTimeout, match=r"within 0\.2 s"):
            await client.detect([CLIP], key="job/batch-1")

    assert stages.stage1.seen == {"batch-0": 2, "batch-1": 2}


async def test_waiting_ends_when_the_stage_has_room(stages: Stages) -> None:
    """A few 429 and 503 answers are waited out and the request succeeds."""

    async def busy(_request: web.Request, _key: str, time: int) -> web.Response | None:
        return refusal(429 if time == 1 else 503, "", retry_after_s=0) if time < 4 else None

    stages.stage1.rule = busy
    async with stage1_client(stages, retry_for_s=5) as client:
        await client.detect([CLIP], key="job/batch-0")

    assert stages.stage1.seen["batch-0"] == 4


async def test_a_reply_over_the_limit_is_refused(stages: Stages) -> None:
    """A reply larger than max_body_mb is not held in memory."""

    async def flood(_request: web.Request, _key: str, _time: int) -> web.Response:
        return web.Response(body=b"x" * 3_000_000)

    stages.stage1.rule = flood
    async with stage1_client(stages, stage1__max_body_mb=2) as client:
        with pytest.raises(BadReply, match="over"):
            await client.detect([CLIP], key="job/batch-0")


def test_every_error_of_the_http_library_is_one_we_map() -> None:
    """aiohttp's client errors all derive from what the request function catches."""
    ours = (aiohttp.ClientError, TimeoutError, ConnectionError)
    exported = [getattr(aiohttp, name) for name in aiohttp.__all__ if name.startswith(("Client", "Server"))]
    errors = [kind for kind in exported if isinstance(kind, type) and issubclass(kind, Exception)]

    assert errors
    assert [kind for kind in errors if not issubclass(kind, ours)] == []
    assert issubclass(StageError, ZroactError)
