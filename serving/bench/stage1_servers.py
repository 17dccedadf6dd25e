"""What the Stage 1 benchmark measures: the daemon, its detector in a bare loop, and other servers around it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2 import wire
from pipeline_ver2.config import Config, Stage1Config
from pipeline_ver2.errors import BadReply, StageError, StageUnreachable
from pipeline_ver2.findings import ClipFindings, read_findings
from serving.bench.daemons import free_ports
from serving.bench.peers.stage1_model import PeerArguments, Way, read_reply
from serving.bench.stage1_http import Connection, HttpReply, HttpRequest
from serving.bench.stage1_load import REQUEST_TIMEOUT_S, LoadFigures
from serving.workers.guarded_child import GuardedChild
from serving.workers.stage1_model import Detector
from serving.workers.stage1_oip import MODEL_NAME

Library = Literal["litserve", "mosec"]

START_TIMEOUT_S = 120.0
_POLL_S = 0.05
_SAME = 2e-3  # of boxes in 0..1 and scores: float32 and the daemon's preparation round differently
_PATHS: dict[Library, str] = {"litserve": "/predict", "mosec": "/inference"}


@dataclass(frozen=True, slots=True)
class Peer:
    """A library, and what its user has written behind it."""

    library: Library
    way: Way

    @property
    def name(self) -> str:
        """In reports."""
        return f"{self.library} ({'as written by its users' if self.way == 'numpy' else 'given our session'})"


PEERS = tuple(Peer(library, way) for library in _PATHS for way in ("numpy", "session"))


def daemon_request(clips: NDArray[np.uint8], config: Stage1Config, *, key: str | None = None) -> HttpRequest:
    """The binary request the orchestrator sends for `(B, T, H, W, 3)` uint8 RGB; it always sends a key with it."""
    parameters = {"threshold": config.threshold, "nms_iou": config.nms_iou}
    parts, head_length = wire.pack_tensors({"clips": clips}, kind="inputs", parameters=parameters)
    headers = {wire.OIP_HEAD_LENGTH_HEADER: str(head_length), "Content-Type": "application/octet-stream"}
    if key is not None:
        headers[wire.IDEMPOTENCY_HEADER] = key
    return HttpRequest.post(f"/v2/models/{MODEL_NAME}/infer", b"".join(parts), headers)


def peer_request(peer: Peer, clips: NDArray[np.uint8]) -> HttpRequest:
    """The same clips as nothing but their bytes."""
    return HttpRequest.post(_PATHS[peer.library], clips.tobytes(), {"Content-Type": "application/octet-stream"})


async def ask_daemon(port: int, request: HttpRequest, count: int) -> list[ClipFindings]:
    """What the daemon finds in a request of `count` clips; `port` is its own.

    Raises:
        StageError: It did not answer, or could not use a clip.
    """
    reply = await _ask_once(port, request)
    headers = {wire.OIP_HEAD_LENGTH_HEADER: reply.headers.get(wire.OIP_HEAD_LENGTH_HEADER.lower(), "")}
    found: list[ClipFindings] = []
    for clip in read_findings(headers, reply.body, count):
        if isinstance(clip, BadReply):
            raise clip
        found.append(clip)
    return found


@contextlib.asynccontextmanager
async def running_peer(
    peer: Peer, config: Config, config_file: Path, request: HttpRequest, together: int
) -> AsyncIterator[tuple[int, list[ClipFindings]]]:
    """Start a peer, give its port and what it found in its first request, and end it with all its processes.

    Args:
        peer: Which.
        config: The daemon's configuration.
        config_file: The same as a file.
        request: It is ready when it has answered this.
        together: Requests its worker may be given at once.

    Raises:
        StageError: It ended, or was not ready in time.
    """
    (port,) = free_ports(1)
    child = await GuardedChild.start(
        _command(peer, config, PeerArguments(config_file, port, peer.way, together)), peer.name
    )
    try:
        reply = await _first_reply(peer, child, port, request)
        yield port, read_reply(reply.body)
    finally:
        await child.stop()


def check_same(peer: Peer, found: Sequence[ClipFindings], expected: Sequence[ClipFindings]) -> None:
    """See that a peer does the daemon's work.

    Raises:
        StageError: It finds something else.
    """
    same = len(found) == len(expected) and all(
        _same(mine, theirs) for mine, theirs in zip(expected, found, strict=True)
    )
    if not same:
        raise StageError(f"{peer.name} does not find what the daemon finds")


async def bare_loop(detector: Detector, clips: NDArray[np.uint8], config: Stage1Config, seconds: float) -> LoadFigures:
    """The daemon's detector called over and over in a thread, with nothing around it; one unmeasured call first."""
    stop = threading.Event()

    def call() -> float:
        begun = time.perf_counter()
        detector.detect(clips, config.threshold, config.nms_iou)
        return time.perf_counter() - begun

    def run() -> LoadFigures:
        call()
        begun, calls_s = time.perf_counter(), list[float]()
        while time.perf_counter() < begun + seconds and not stop.is_set():
            calls_s.append(call())
        return LoadFigures(len(clips) * len(calls_s), time.perf_counter() - begun, tuple(calls_s))

    try:
        return await asyncio.to_thread(run)
    finally:
        stop.set()


def _command(peer: Peer, config: Config, arguments: PeerArguments) -> list[str]:
    command = [sys.executable, "-P", "-m", f"serving.bench.peers.{peer.library}_stage1", *arguments.as_list()]
    if peer.library == "mosec":
        largest = int(config.stage1.max_body_mb * 1e6)
        timeout_ms = int(REQUEST_TIMEOUT_S * 1e3)
        command += ["--address", "127.0.0.1", "--timeout", str(timeout_ms), "--max-request-size", str(largest)]
        command += ["--log-level", "warning"]
    return command


async def _first_reply(peer: Peer, child: GuardedChild, port: int, request: HttpRequest) -> HttpReply:
    ended = asyncio.create_task(child.wait())
    refused: StageError = StageUnreachable("it was not asked")
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not ended.done():
                try:
                    return await _ask_once(port, request)
                except StageError as error:
                    refused = error
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise StageUnreachable(f"{peer.name} is not ready after {START_TIMEOUT_S:g} s: {refused}") from error
    finally:
        ended.cancel()
    raise StageError(f"{peer.name} ended with exit code {ended.result()}; is the extra `bench` installed?")


async def _ask_once(port: int, request: HttpRequest) -> HttpReply:
    connection = await Connection.open(port, timeout_s=REQUEST_TIMEOUT_S)
    try:
        return await connection.ask(request)
    finally:
        connection.close()


def _same(one: ClipFindings, other: ClipFindings) -> bool:
    if one.boxes.shape != other.boxes.shape:
        return False
    pairs = ((one.boxes, other.boxes), (one.scores, other.scores.reshape(one.scores.shape)))
    return all(np.allclose(mine, theirs, rtol=0, atol=_SAME) for mine, theirs in pairs)
