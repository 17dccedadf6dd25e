"""What is sent to the servers of the Stage 1 benchmark, and when a peer counts as one."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.errors import StageError
from pipeline_ver2.findings import ClipFindings
from pipeline_ver2.wire import unpack_tensors
from serving.bench.stage1_servers import (
    PEERS,
    Library,
    Peer,
    bare_loop,
    check_same,
    daemon_request,
    peer_request,
    running_peer,
)
from serving.workers.stage1_model import OnnxDetector
from tests.tiny_detector import BLUE, RED, clip_of

CLIPS = np.stack([clip_of(RED), clip_of(BLUE)])
FOUND = ClipFindings(np.full((1, 4), 0.5, np.float32), np.full((1, 3), 0.25, np.float32))
NOTHING = ClipFindings(np.zeros((0, 4), np.float32), np.zeros((0, 3), np.float32))


def test_the_daemon_s_request_is_the_orchestrator_s(tiny_stage1: Config) -> None:
    """A binary request with thresholds."""
    request = daemon_request(CLIPS, tiny_stage1.stage1)
    head = request.head.decode()
    length = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Inference-Header"))
    tensors, told = unpack_tensors(request.body, int(length), kind="inputs")
    np.testing.assert_array_equal(CLIPS, tensors["clips"])
    assert told["parameters"] == {"threshold": 0.25, "nms_iou": 0.45, "binary_data_output": True}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_sent_the_bytes(peer: Peer) -> None:
    """The same clips without any framing."""
    assert peer_request(peer, CLIPS).body == CLIPS.tobytes()


def test_a_peer_that_finds_the_same() -> None:
    """Rounding is no difference; finding nothing is the same as finding nothing."""
    rounded = ClipFindings(FOUND.boxes + 1e-4, FOUND.scores - 1e-4)
    check_same(PEERS[0], [rounded, NOTHING], [FOUND, NOTHING])


@pytest.mark.parametrize(
    "found",
    [[], [FOUND, FOUND], [NOTHING], [ClipFindings(FOUND.boxes + 0.1, FOUND.scores)]],
    ids=["no clip", "a clip more", "nothing", "elsewhere"],
)
def test_a_peer_that_finds_something_else(found: list[ClipFindings]) -> None:
    """It is not measured."""
    with pytest.raises(StageError, match="does not find what the daemon finds"):
        check_same(PEERS[0], found, [FOUND])


async def test_the_bare_loop_counts_its_clips(tiny_stage1: Config) -> None:
    """As many as were in its calls."""
    figures = await bare_loop(OnnxDetector(tiny_stage1.stage1), CLIPS, tiny_stage1.stage1, 0.05)
    assert figures.clips == 2 * len(figures.latencies_s) > 0
    assert figures.wall_s >= 0.05


async def test_a_peer_that_cannot_start(tiny_stage1: Config, tmp_path: Path) -> None:
    """Its end is noticed, and the error says what may be missing."""
    missing = Peer(cast(Library, "no_such_library"), "numpy")
    with pytest.raises(StageError, match="ended with exit code 1; is the extra `bench` installed"):
        async with running_peer(missing, tiny_stage1, tmp_path / "none", peer_request(PEERS[0], CLIPS), 2):
            pass
