"""Memory of frame extraction: bounded by what is in hand, not by the video."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.videos import lavfi

MEMORY_SCRIPT = """
import sys
from pathlib import Path
from pipeline_ver2.main import FrameExtractor

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

with FrameExtractor(Path(sys.argv[1]), grid_fps=30, keyframe_interval=11, model_size=(224, 224)) as frames:
    seen, early, late = 0, 0.0, 0.0
    for frame in frames:
        seen += 1
        if seen % int(sys.argv[3]) == 0:
            late = max(late, resident_mib())
            early = late if seen <= int(sys.argv[2]) else early
print(seen, early, late)
"""


def memory_growth(path: Path, warm_up: int, every: int) -> tuple[int, float]:
    """Grid frames seen, and how far resident memory rose over its highest in the warm-up, MiB; `every` = how often."""
    command = [sys.executable, "-c", MEMORY_SCRIPT, str(path), str(warm_up), str(every)]
    # Fixed allocator threshold: big frames go back to the system at once, so that growth is what is held.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=110, env=environment)
    seen, early, late = run.stdout.split()
    return int(seen), float(late) - float(early)


@pytest.mark.slow
@pytest.mark.fault("V12")
def test_memory_does_not_grow_with_a_4k_video() -> None:
    """Past the first 12 frames of 4K less than two pictures (24 MiB each) are added."""
    path = lavfi("4k.mp4", "testsrc2=s=3840x2160:r=30:d=1.5", "-pix_fmt", "yuv420p", "-preset", "ultrafast")
    seen, growth = memory_growth(path, 12, 1)
    assert seen == 45
    assert growth < 48


@pytest.mark.slow
@pytest.mark.fault("V12")
def test_memory_does_not_grow_with_a_30_minute_video() -> None:
    """Half an hour at 1 frame/s: 54,000 grid frames in constant memory."""
    path = lavfi("long.mp4", "testsrc2=s=160x120:r=1:d=1800", "-pix_fmt", "yuv420p", "-preset", "ultrafast")
    seen, growth = memory_growth(path, 2000, 100)
    assert seen == 1799 * 30 + 1
    assert growth < 16


OVERLAY_SCRIPT = """
import sys
from pathlib import Path
from pipeline_ver2.overlay import annotate
from pipeline_ver2.painting import Caption, KeyframeOverlay
from pipeline_ver2.wire import Detection, LabelScore

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

class Stop:
    seen, early, late = 0, 0.0, 0.0

    def is_set(self):
        self.seen += 1
        if self.seen > 100:
            self.late = max(self.late, resident_mib())
            self.early = self.late if self.seen <= 200 else self.early
        return False

def person(number, left):
    labels = (LabelScore(name="walk" + "x" * (number % 40), score=number / 1000),)
    return Detection(box=(left, 100, left + 50, 300), labels=labels)

keys = [KeyframeOverlay(n / 10, [person(n, left) for left in (10, 200, 400)]) for n in range(200)]
captions = [Caption(n / 10, n / 10 + 0.1, f"answer {n}") for n in range(200)]
stop = Stop()
annotate(Path(sys.argv[1]), Path(sys.argv[2]), keyframes=keys, captions=captions, stop=stop)
print(stop.early, stop.late)
"""


@pytest.mark.slow
@pytest.mark.fault("V12")
def test_memory_does_not_grow_with_the_annotated_video(tmp_path: Path) -> None:
    """Ever new labels and captions on 600 frames: what was drawn is not kept; no allocator setting helps here."""
    path = lavfi("crowd.mp4", "testsrc2=s=768x432:r=30:d=20", "-pix_fmt", "yuv420p", "-preset", "ultrafast")
    command = [sys.executable, "-c", OVERLAY_SCRIPT, str(path), str(tmp_path / "out.mp4")]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=110)
    early, late = (float(number) for number in run.stdout.split())
    assert early > 20
    assert late - early < 6
