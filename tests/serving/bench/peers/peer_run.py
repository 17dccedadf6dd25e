"""A peer on its feet, and the daemon beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from pipeline_ver2.config import Config
from pipeline_ver2.private_config import write_effective_config
from serving.bench.peers.stage1_model import read_reply
from serving.bench.stage1_http import Connection
from serving.bench.stage1_load import load
from serving.bench.stage1_servers import Peer, check_same, peer_request, running_peer
from serving.workers.stage1_model import OnnxDetector
from tests.tiny_detector import BLUE, RED, WHITE, clip_of

CLIPS = np.stack([clip_of(RED), clip_of(BLUE), clip_of(WHITE)])


async def run_and_compare(peer: Peer, config: Config, folder: Path) -> None:
    """Requests of different length, alone and from several clients at once, are answered as by the daemon's detector.

    At the end nobody listens on the peer's port.
    """
    file = folder / "peer.json"
    write_effective_config(config, file)
    stage1 = config.stage1
    expected = [item.findings for item in OnnxDetector(stage1).detect(CLIPS, stage1.threshold, stage1.nms_iou)]
    three, one = peer_request(peer, CLIPS), peer_request(peer, CLIPS[1:2])
    async with running_peer(peer, config, file, three, together=2) as (port, found):
        check_same(peer, found, expected)
        connection = await Connection.open(port, timeout_s=30)
        check_same(peer, read_reply((await connection.ask(one)).body), expected[1:2])
        connection.close()
        assert (await load(port, lambda: three, clips=3, clients=3, seconds=0.2)).failures == ()
    with_nobody = await asyncio.gather(Connection.open(port, timeout_s=30), return_exceptions=True)
    assert isinstance(with_nobody[0], Exception)
