"""The Stage 1 daemon before requests that lie: refused at once, by name, without memory for what they promise."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import resource
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from pipeline_ver2 import wire
from pipeline_ver2.config import Config
from pipeline_ver2.errors import RequestError
from serving.workers import stage1_frames
from serving.workers.stage1_server import build_app
from tests import tiny_detector as tiny
from tests.oip_client import INFER
from tests.servers import served
from tests.tiny_detector import clip_of

MakeConfig = Callable[..., Config]

CLIP_BYTES = clip_of(tiny.RED).tobytes()
SHAPE = [1, *clip_of(tiny.RED).shape]
GENEROUS_S = 20  # a busy machine's; an idle one takes milliseconds
MEMORY_KB = 200_000


@pytest.fixture
async def http(stage1_url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the daemon with the tiny detector, that does not wait for long."""
    async with aiohttp.ClientSession(stage1_url, timeout=aiohttp.ClientTimeout(total=GENEROUS_S)) as session:
        yield session


def _binary(pixels: bytes = CLIP_BYTES, **changes: object) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a binary request with one tensor."""
    tensor = {"name": "clips", "datatype": "UINT8", "shape": SHAPE, "parameters": {"binary_data_size": len(CLIP_BYTES)}}
    head = json.dumps({"inputs": [tensor | changes]}).encode()
    return head + pixels, {wire.OIP_HEAD_LENGTH_HEADER: str(len(head))}


def _sized(size: object) -> dict[str, object]:
    return {"binary_data_size": size}


HOSTILE: dict[str, tuple[tuple[bytes, dict[str, str]], str]] = {
    "negative side": (_binary(shape=[-1, *SHAPE[1:]]), "tensor clips: shape"),
    "negative size": (_binary(parameters=_sized(-1)), "tensor clips: binary_data_size is -1"),
    "another size": (_binary(parameters=_sized(7)), "tensor clips: binary_data_size is 7"),
    "2**40 clips": (_binary(shape=[2**40, *SHAPE[1:]]), "tensor clips: binary_data_size"),
    "2**40 bytes": (_binary(shape=[2**40], parameters=_sized(2**40)), "tensor clips: the body ends"),
    "more than numbers hold": (_binary(shape=[2**62] * 32, parameters=_sized(2**62)), "tensor clips: binary_data_size"),
    "no end of sides": (_binary(shape=[2**62] * 200_000), "tensor clips: shape"),
    "numbers of 4,000 digits": (_binary(shape=[10**4000] * 32), "tensor clips: shape"),
    "floats": (
        _binary(datatype="FP32", parameters=_sized(4 * len(CLIP_BYTES)), pixels=CLIP_BYTES * 4),
        "clips: expected UINT8 [B,4,32,48,3], found float32",
    ),
    "no such type": (_binary(datatype="X" * 10**6), "tensor clips: datatype"),
    "truncated": (_binary(CLIP_BYTES[:-1]), "tensor clips: the body ends 1 bytes early"),
    "too long": (_binary(CLIP_BYTES + b"x"), "1 bytes follow the last binary tensor"),
    "an empty head": ((b"{}", {wire.OIP_HEAD_LENGTH_HEADER: "2"}), "inputs must be a list"),
    "a head past the end": ((b"{}", {wire.OIP_HEAD_LENGTH_HEADER: "3"}), wire.OIP_HEAD_LENGTH_HEADER),
    "brackets": ((b"[" * 10**6, {}), "not valid JSON"),
    "2**40 numbers": (
        (json.dumps({"inputs": [{"name": "clips", "datatype": "UINT8", "shape": [2**40], "data": [1]}]}).encode(), {}),
        "tensor clips: data does not fit uint8",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_what_lies_is_refused(http: aiohttp.ClientSession, kind: str) -> None:
    """400 with the field's name, soon, with a short message and without memory for what was promised."""
    (body, headers), said = HOSTILE[kind]
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with http.post(INFER, data=io.BytesIO(body), headers=headers) as reply:
        content = await reply.read()
        assert reply.status == 400
    assert said in json.loads(content)["error"]
    assert len(content) < 2000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < MEMORY_KB


async def test_a_connection_that_breaks_in_the_body_costs_nothing(stage1_url: str, http: aiohttp.ClientSession) -> None:
    """A client that announces megabytes, sends a few bytes and goes leaves the daemon as it was."""
    host, port = stage1_url.removeprefix("http://").split(":")
    for announced in (30_000, 30_000_000):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {announced}\r\n\r\n".encode() + b"{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    body, headers = _binary()
    async with http.post(INFER, data=body, headers=headers) as reply:
        assert reply.status == 200


def _picture(size: tuple[int, int] = (tiny.WIDTH, tiny.HEIGHT)) -> str:
    encoded = io.BytesIO()
    Image.new("RGB", size, tiny.RED).save(encoded, "PNG")
    return base64.b64encode(encoded.getvalue()).decode()


def _detect_body(*pictures: str) -> bytes:
    clips = [{"clip_id": str(number), "frames": [picture] * 4} for number, picture in enumerate(pictures)]
    return json.dumps({"clips": clips}).encode()


@pytest.mark.parametrize("contract", ["machines", "people"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_the_body_limit_is_kept_to_the_byte(stage1_config: MakeConfig, contract: str, *, chunked: bool) -> None:
    """A body of just the limit is answered, one byte more is 413, with and without an announced length."""
    body, headers = _binary() if contract == "machines" else (_detect_body(_picture()), {})
    headers["Content-Type"] = "application/json" if contract == "people" else "application/octet-stream"
    path = "/detect" if contract == "people" else INFER
    statuses = []
    for limit in (len(body), len(body) - 1):
        with served(build_app(stage1_config(max_body_mb=(limit + 0.5) / 1e6))) as url:
            sent = _pieces(body) if chunked else body
            async with aiohttp.ClientSession(url) as http, http.post(path, data=sent, headers=headers) as reply:
                statuses.append(reply.status)
                content = await reply.json(content_type=None) if reply.status != 200 else {}
    assert statuses == [200, 413]
    assert "body_too_large" in json.dumps(content)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 1000):
        yield body[start : start + 1000]


async def test_the_pixels_of_a_request_are_bounded(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures are counted by their heads before any is decoded: a clip over the rest of the budget fails alone."""
    usual = 4 * tiny.WIDTH * tiny.HEIGHT
    monkeypatch.setattr(stage1_frames.DecodeBudget.__init__, "__defaults__", (2 * usual + 100,))
    body = _detect_body(_picture(), _picture((400, 400)), _picture(), _picture())
    async with http.post("/detect", data=body, headers={"Content-Type": "application/json"}) as reply:
        results: list[dict[str, Any]] = (await reply.json())["results"]
    assert [result["state"] for result in results] == ["ok", "failed", "ok", "failed"]
    assert results[1]["error"] == "its frames have 640000 pixels in all, of those allowed in a request 6244 are left"


def test_sixteen_of_the_largest_frames_are_too_many() -> None:
    """Four clips of 4K fit into a request; sixteen frames of the largest size do not."""
    stage1_frames.DecodeBudget().take(64 * 4096 * 2160)
    with pytest.raises(RequestError, match="pixels in all"):
        stage1_frames.DecodeBudget().take(16 * stage1_frames.MAX_FRAME_PX)


def test_decoding_can_be_called_off(tmp_path: Path) -> None:
    """Once its client has gone, a clip is decoded no further."""
    path = tmp_path / "frame.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    clip, budget = wire.DetectClip(clip_id="a", frame_paths=(str(path),) * 4), stage1_frames.DecodeBudget()
    decoded = stage1_frames.decode_clip(clip, [tmp_path], budget, clip_length=4, image_size=(8, 8))
    assert decoded.size == (8, 8)
    budget.call_off()
    with pytest.raises(RequestError, match="nobody waits"):
        stage1_frames.decode_clip(clip, [tmp_path], budget, clip_length=4, image_size=(8, 8))
