"""`zroact bench stage1`: the Stage 1 daemon over HTTP against its own detector in a bare loop and other servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.config import Config
from pipeline_ver2.decoder import Decoder
from pipeline_ver2.errors import StageError, VideoError
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.private_config import write_effective_config
from pipeline_ver2.supervisor import Supervisor
from pipeline_ver2.wire import IDEMPOTENCY_HEADER
from serving.bench.stage1_load import LoadFigures, RequestMaker, load
from serving.bench.stage1_report import BARE, CLIENTS, CLIPS, DAEMON, SOAK_CLIENTS, Round, Stage1Figures
from serving.bench.stage1_servers import (
    PEERS,
    Peer,
    ask_daemon,
    bare_loop,
    check_same,
    daemon_request,
    peer_request,
    running_peer,
)
from serving.bench.stage1_soak import SoakFigures, daemon_pid, soak
from serving.workers.stage1_model import OnnxDetector

SINGLE_ROUNDS = 3

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: rounds of all servers, seconds of each in a round, seconds of the soak (0: none)."""

    pairs: int
    seconds: float
    soak_s: float
    peers: Sequence[Peer] = PEERS


async def measure(clip: Path, config: Config, folder: Path, plan: Plan, tell: Tell) -> Stage1Figures:
    """Rounds of all servers, each round in the other order than the one before; then one client; then the soak.

    The daemon runs all the time, idle while others are measured; a peer runs only while it is measured.

    Args:
        clip: A video; the clips of every request are its first.
        config: The daemon's.
        folder: For the configuration the peers are given.
        plan: How much is measured.
        tell: Is told of progress.

    Raises:
        StageError: A server failed, or a peer finds something else than the daemon.
    """
    detector = await asyncio.to_thread(OnnxDetector, config.stage1)
    clips = await first_clips(clip, config, detector.info.image_size)
    config_file = folder / "peers.json"
    await asyncio.to_thread(write_effective_config, config, config_file)
    async with Supervisor(config, stages=("stage1",)):
        bench = _Bench(config, config_file, detector, clips, plan, tell)
        batches = [await bench.round(number, CLIPS, plan.peers) for number in range(plan.pairs)]
        ours = [peer for peer in plan.peers if peer.way == "session"]
        singles = [await bench.round(number, 1, ours) for number in range(min(SINGLE_ROUNDS, plan.pairs))]
        one_client = await bench.load_daemon(CLIPS, clients=1)
        return Stage1Figures(tuple(batches), tuple(singles), one_client, await bench.soak() if plan.soak_s else None)


async def first_clips(clip: Path, config: Config, image_size: tuple[int, int]) -> NDArray[np.uint8]:
    """The first clips of a video, `(CLIPS, T, H, W, 3)` uint8 RGB at the model's size.

    Raises:
        VideoError: It cannot be used.
    """
    clips: list[NDArray[np.uint8]] = []
    async with Decoder(clip, config, image_size, TimingRecorder()) as decoder:
        while len(clips) < CLIPS and (keyframe := await decoder.next_clip()) is not None:
            clips.append(keyframe.clip)
    if len(clips) < CLIPS:
        raise VideoError(f"{clip}: {len(clips)} keyframes, {CLIPS} are needed")
    return np.stack(clips)


class _Bench:
    """A daemon that runs, and what is sent to it and to its peers."""

    def __init__(
        self,
        config: Config,
        config_file: Path,
        detector: OnnxDetector,
        clips: NDArray[np.uint8],
        plan: Plan,
        tell: Tell,
    ) -> None:
        self._config, self._config_file, self._detector = config, config_file, detector
        self._clips, self._plan, self._tell = clips, plan, tell
        self._keys = itertools.count()

    async def round(self, number: int, clips: int, peers: Sequence[Peer]) -> Round:
        """Measure everything once with requests of so many clips, every other time from the last to the first."""
        parts: list[tuple[str, Callable[[], Awaitable[LoadFigures]]]] = [
            (BARE, self._bare_loop),
            (DAEMON, lambda: self.load_daemon(clips)),
            *((peer.name, partial(self._load_peer, peer, clips)) for peer in peers),
        ]
        measured: dict[str, LoadFigures] = {}
        for name, part in parts if number % 2 == 0 else reversed(parts):
            figures = measured[name] = await part()
            if figures.failures:
                raise StageError(f"{name}: {figures.failures[0]}")
            self._tell(f"requests of {clips}, round {number + 1}: {name} {figures.clips_per_s:.2f} clips/s")
        return measured

    async def load_daemon(self, clips: int, clients: int = CLIENTS) -> LoadFigures:
        """Load the daemon with requests of so many clips, each with a key of its own, as the orchestrator does."""
        make = self._daemon_requests(clips)
        return await load(self._port, make, clips=clips, clients=clients, seconds=self._plan.seconds)

    async def soak(self) -> SoakFigures:
        """Many clients for a long time."""
        pid = await asyncio.to_thread(daemon_pid, self._config.paths.work_dir / "logs" / "stage1.log")
        make = self._daemon_requests(CLIPS)
        return await soak(self._port, pid, make, clips=CLIPS, clients=SOAK_CLIENTS, seconds=self._plan.soak_s)

    async def _bare_loop(self) -> LoadFigures:
        return await bare_loop(self._detector, self._clips, self._config.stage1, self._plan.seconds)

    async def _load_peer(self, peer: Peer, clips: int) -> LoadFigures:
        together = max(2, self._config.stage1.max_batch // clips)
        request, seconds = peer_request(peer, self._clips[:clips]), self._plan.seconds
        expected = await ask_daemon(self._port, self._daemon_requests(clips)(), clips)
        async with running_peer(peer, self._config, self._config_file, request, together) as (port, found):
            check_same(peer, found, expected)
            return await load(port, lambda: request, clips=clips, clients=CLIENTS, seconds=seconds)

    def _daemon_requests(self, clips: int) -> RequestMaker:
        request = daemon_request(self._clips[:clips], self._config.stage1)
        return lambda: request.with_header(IDEMPOTENCY_HEADER, f"bench/{next(self._keys)}")

    @property
    def _port(self) -> int:
        return self._config.stage1.port
