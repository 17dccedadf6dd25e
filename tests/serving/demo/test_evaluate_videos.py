"""What is said of real videos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline_ver2.config import Config
from serving.demo.evaluate_videos import main, run_videos, table


async def test_each_video_is_run_and_told(
    clip: Path, config: Config, tmp_path: Path, tell: Callable[[str], None], heard: list[str]
) -> None:
    """Boxes, answers and confirmed answers are counted, for each file by its name."""
    figures = await run_videos(config, [clip], tmp_path / "out", tell)
    assert figures == {
        "clip.mp4": {
            "keyframes": 13,
            "keyframes with boxes": 0,
            "boxes": {},
            "slots": 5,
            "answers": {"walk": 5},
            "confirmed": 0,
        }
    }
    assert heard == ["clip.mp4: done"]


def test_the_table_has_a_line_for_each_video() -> None:
    """Counts are written out, most frequent first; nothing found is said too."""
    found = {"keyframes": 8, "keyframes with boxes": 3, "slots": 3, "confirmed": 2, "answers": {"walk": 2, "none": 1}}
    lines = table({"a.mp4": {**found, "boxes": {"run": 2, "fall": 1}}, "b.mp4": {**found, "boxes": {}}}).splitlines()
    assert lines[2:] == [
        "| a.mp4 | 8, 3 | 2 run, 1 fall | 3, 2 | 2 walk, 1 none |",
        "| b.mp4 | 8, 3 | none at all | 3, 2 | 2 walk, 1 none |",
    ]


def test_a_folder_without_videos_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other files are no videos; the message names the folder."""
    (tmp_path / "README.md").touch()
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path)])
    assert ended.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err
