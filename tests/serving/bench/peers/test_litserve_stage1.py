"""Stage 1 on LitServe answers what the daemon answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ver2.config import Config
from serving.bench.peers.stage1_model import Way
from serving.bench.stage1_servers import Peer
from tests.serving.bench.peers.peer_run import run_and_compare


@pytest.mark.slow
@pytest.mark.parametrize("way", ["numpy", "session"])
async def test_it_finds_the_same(way: Way, tiny_stage1: Config, tmp_path: Path) -> None:
    """With the export behind numpy, and with the daemon's session."""
    await run_and_compare(Peer("litserve", way), tiny_stage1, tmp_path)
