"""The evaluation command."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline_ver2.config import Config
from serving.demo import evaluate, evaluate_clips
from serving.demo.evaluate import text
from tests.stand_ins import Stages

DETECTED = {"A": {"map50": 0.9, "people": 3}, "B": {"map50": 0.95, "people": 4}, "spread": {}}
ANSWERED = {"right by action": {"walk": None}, "given for right": {"walk": {"run": 1}}}
REPORT = {
    "detector": {"clips": 2, "30 fps": DETECTED},
    "answerer": {"findings": {"A": ANSWERED, "B": ANSWERED}},
    "clips": {"demo clip": {"slots right": 13, "answers": [{"right": "walk"}]}},
    "bars": [
        {"name": "one", "value": 0.95, "op": ">=", "target": 0.9, "ok": True},
        {"name": "two", "value": 0.2, "op": "<=", "target": 0.15, "ok": False},
    ],
}  # fmt: skip


def test_people_get_a_table_and_the_bars() -> None:
    """A row for each figure of both sets, lines for the rest, and whether each bar is reached."""
    assert text(REPORT).splitlines() == [
        "| figure | A | B |",
        "|---|---|---|",
        "| detector, 30 fps, map50 | 0.900 | 0.950 |",
        "| detector, 30 fps, people | 3 | 4 |",
        "| answerer, findings, right by action, walk | - | - |",
        "clips, demo clip, slots right: 13",
        "ok   one: 0.950 >= 0.9",
        "MISS two: 0.200 <= 0.15",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_all_parts_are_measured_once(
    stages: Stages, config: Config, tmp_path: Path, tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages that are up are used; every part has figures and bars; what is kept is not measured again."""
    monkeypatch.setattr(evaluate_clips, "EMPTY_FRAMES", 33)
    picture, keep = tmp_path / "confusion.svg", tmp_path / "parts.json"
    options = argparse.Namespace(only="detector", clips=2, slots=1, picture=picture, keep=keep)
    await evaluate.evaluate(config, tmp_path, options, tell)
    asked = len(stages.stage1.keys)
    assert not picture.exists()
    options.only = None
    report, bars = await evaluate.evaluate(config, tmp_path, options, tell)
    assert list(report) == list(evaluate.PARTS)
    assert len(bars) == 14
    assert "The answerer" in picture.read_text()
    assert not any(key.split("/")[1].startswith("clip-") for key in stages.stage1.keys[asked:])
    asked = len(stages.stage1.keys)
    assert await evaluate.evaluate(config, tmp_path, options, tell) == (report, bars)
    assert len(stages.stage1.keys) == asked


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_starts_the_daemons_and_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the figures of both seed sets, their spread and the bars, which decide the exit code."""
    code = evaluate.main(["--only", "detector", "--clips", "8", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert set(report["detector"]["30 fps"]) == {"A", "B", "spread"}
    assert report["detector"]["engine"] == "onnxruntime_onnx"
    assert report["detector"]["30 fps"]["A"]["recall"] > 0.5
    assert "answerer" not in report
    assert {"name", "value", "op", "target", "ok"} == set(report["bars"][0])
    assert code == int(not all(bar["ok"] for bar in report["bars"]))


def test_a_detector_that_is_no_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The daemon's refusal is told in one line that names the key."""
    with pytest.raises(SystemExit) as ended:
        evaluate.main(["--only", "detector", "--detector", "/nowhere/detector.onnx"])
    assert ended.value.code == 2
    assert "stage1.model_path" in capsys.readouterr().err
