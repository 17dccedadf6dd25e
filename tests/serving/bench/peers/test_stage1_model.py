"""The detector behind the peers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline_ver2.config import Config
from pipeline_ver2.private_config import write_effective_config
from serving.bench.peers.stage1_model import PeerArguments, PeerDetector, Way, read_arguments, read_reply
from tests.tiny_detector import BLACK, BLUE, MIDDLE_BOX, RED, clip_of

WAYS: tuple[Way, ...] = ("numpy", "session")


@pytest.fixture
def config_file(tiny_stage1: Config, tmp_path: Path) -> Path:
    """The daemon's configuration as a file."""
    file = tmp_path / "peer.json"
    write_effective_config(tiny_stage1, file)
    return file


@pytest.mark.parametrize("way", WAYS)
def test_requests_are_run_together_and_answered_apart(config_file: Path, way: Way) -> None:
    """Each reply holds the clips of its request; a clip in which nothing can be found holds nothing."""
    detector = PeerDetector(config_file, way)
    two = detector.read(np.stack([clip_of(RED), clip_of(BLACK)]).tobytes())
    one = detector.read(clip_of(BLUE).tobytes())
    first, second = (read_reply(json.dumps(reply).encode()) for reply in detector.answer([two, one]))
    assert [len(clip.boxes) for clip in first] == [2, 0]
    assert [len(clip.boxes) for clip in second] == [2]
    np.testing.assert_allclose(MIDDLE_BOX, first[0].boxes[0], atol=1e-3)
    np.testing.assert_allclose([0, 0, 1], second[0].scores[0], atol=1e-3)


def test_arguments_survive_the_command_line(tmp_path: Path) -> None:
    """What a peer's library wants beside them is left to it."""
    arguments = PeerArguments(tmp_path / "file", 1234, "numpy", 2)
    assert read_arguments([*arguments.as_list(), "--timeout", "60"]) == arguments


def test_a_peer_without_a_way_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Usage, exit code 2."""
    with pytest.raises(SystemExit, match="2"):
        read_arguments(["--config", "x", "--port", "1", "--together", "2", "--way", "another"])
    assert "--way" in capsys.readouterr().err
