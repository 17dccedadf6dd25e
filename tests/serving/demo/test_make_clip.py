"""The shipped demo clip and its truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from serving.demo import seeds
from serving.demo.clip_script import FPS, FRAMES, PLACE, SIZE, demo_scene, frame_time_s
from serving.demo.make_clip import FOLDER, frames, truth, truth_json, write_video

CLIP = FOLDER / "clip.mp4"
TRUTH: dict[str, Any] = json.loads((FOLDER / "clip_truth.json").read_text())


def test_truth_file_is_what_the_script_makes() -> None:
    """The script, run again, writes the very file that is shipped."""
    assert truth_json(truth(demo_scene())) == (FOLDER / "clip_truth.json").read_text()


def test_clip_is_playable_everywhere() -> None:
    """H.264, yuv420p, 640x360, 419 frames at 30 a second, index before the pictures, small."""
    with av.open(str(CLIP)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert (stream.height, stream.width) == SIZE
        assert stream.average_rate == FPS
        times = [frame.time for frame in container.decode(stream)]
    assert times == pytest.approx([frame_time_s(index) for index in range(FRAMES)], abs=1e-6)
    content = CLIP.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")
    assert len(content) < 2_500_000


def test_clip_shows_what_the_truth_says() -> None:
    """Pictures of the clip are those that the script draws, but for compression."""
    scene = demo_scene()
    with av.open(str(CLIP)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index % 40 == 0:
                drawn = scene.render(frame_time_s(index), SIZE)[0].astype(float)
                assert np.abs(frame.to_ndarray(format="rgb24") - drawn).mean() < 4


def test_clip_tells_a_story() -> None:
    """Walk, wave, run, jump and fall each are the action of a slot, in that order, and somebody is always there."""
    actions = [slot["action"] for slot in TRUTH["slots"]]
    assert len(actions) == 13
    assert [one for one in dict.fromkeys(actions) if one != "none"] == ["walk", "wave", "run", "jump", "fall"]
    assert "none" not in actions
    assert any(len(frame["persons"]) == 2 for frame in TRUTH["frames"])


def test_clip_uses_demo_seeds_only() -> None:
    """Neither place nor people of the clip can have been trained on."""
    assert PLACE in seeds.DEMO


def test_writing_is_repeatable(tmp_path: Path) -> None:
    """The same pictures give the same file."""
    pictures = [picture for picture, _ in zip(frames(demo_scene()), range(5), strict=False)]
    for name in ("a.mp4", "b.mp4"):
        write_video(tmp_path / name, iter(pictures))
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
