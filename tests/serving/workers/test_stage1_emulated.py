"""The emulated detector."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline_ver2.config import Config
from serving.workers.stage1_emulated import EMULATED_NOTE, EMULATED_SIZE, EmulatedDetector
from serving.workers.stage1_model import load_detector

MakeConfig = Callable[..., Config]


def _emulated(stage1_config: MakeConfig, **keys: object) -> EmulatedDetector:
    detector = load_detector(stage1_config(engine="emulated", **keys).stage1)
    assert isinstance(detector, EmulatedDetector)
    return detector


def test_the_emulation_says_so(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """Nobody can take the emulation for a model, and it needs no model file; its labels can be set."""
    (tmp_path / "labels.json").write_text(json.dumps(["a", "b"]), encoding="utf-8")
    info = _emulated(stage1_config, model_path=None, labels_path=str(tmp_path / "labels.json")).info
    assert (info.platform, info.provider, info.note) == ("emulated", "emulated", EMULATED_NOTE)
    assert (info.labels, info.clip_length, info.image_size) == (("a", "b"), 4, EMULATED_SIZE)


@pytest.mark.parametrize(("clips", "sleeps"), [(1, 1), (4, 1), (5, 2)])
def test_the_emulation_takes_its_time(stage1_config: MakeConfig, clips: int, sleeps: int) -> None:
    """Up to `batch_size` clips take one service time, more take more."""
    detector = _emulated(stage1_config, emulated={"service_s": 0.3})
    batch = np.zeros((clips, 4, *EMULATED_SIZE, 3), np.uint8)
    started = time.monotonic()
    detector.detect(batch, 0.25, 0.45)
    assert 0.3 * sleeps <= time.monotonic() - started < 0.3 * (sleeps + 1)


def test_the_emulation_depends_on_the_pixels_only(stage1_config: MakeConfig) -> None:
    """Same clip, same answer, alone or in a batch; another picture, another label."""
    detector = _emulated(stage1_config, emulated={"service_s": 0})
    batch = np.zeros((2, 4, *EMULATED_SIZE, 3), np.uint8)
    batch[1] = 2
    together = detector.detect(batch, 0.25, 0.45)
    alone = detector.detect(batch[1:], 0.25, 0.45)
    np.testing.assert_array_equal(together[1].findings.scores, alone[0].findings.scores)
    assert [int(output.findings.scores[0].argmax()) for output in together] == [0, 2]


def test_a_closed_emulation_stops_sleeping(stage1_config: MakeConfig) -> None:
    """A daemon that stops does not wait for a long emulated call."""
    detector = _emulated(stage1_config, emulated={"service_s": 600})
    detector.close()
    assert len(detector.detect(np.zeros((1, 4, *EMULATED_SIZE, 3), np.uint8), 0.25, 0.45)) == 1
