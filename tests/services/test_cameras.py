"""Real cameras that are cut off and come back: GStreamer's RTSP server, and ffmpeg's MPEG-TS over HTTP."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from pipeline_ver2.job import Job, Silent
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import KeyframeRecord, Results, SlotRecord, read_results
from tests.pipeline_ver2.conftest import settings_for
from tests.stand_ins import Stages, stand_ins

PYTHON = "/usr/bin/python3"
RTSP_SERVER = Path(__file__).parents[1] / "rtsp_server.py"
NEEDED = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
PATIENCE_S = 60.0

Kind = Literal["rtsp", "http"]
Cut = Literal["killed", "silent"]


@dataclass
class CameraProcess:
    """A camera in a process of its own, at one port for all its lives."""

    kind: Kind
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{self.kind}://127.0.0.1:{self.port}/camera"

    def command(self) -> list[str]:
        """How it is started."""
        if self.kind == "rtsp":
            return [PYTHON, str(RTSP_SERVER), str(self.port)]
        source = ["-re", "-f", "lavfi", "-i", "testsrc=size=320x240:rate=30"]
        coded = ["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-g", "15", "-f", "mpegts"]
        return ["ffmpeg", "-v", "quiet", "-nostdin", *source, *coded, "-listen", "1", self.url]

    def start(self) -> None:
        """Begin a life."""
        self.process = subprocess.Popen(self.command(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def cut(self, how: Cut) -> None:
        """Have it vanish, or hold its connections and say nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)

    def end(self) -> None:
        """End its life, however it is."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@dataclass
class Watch(Silent):
    """Counts what a run tells."""

    keyframes: int = 0
    times: list[float] = field(default_factory=list)

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """Count a keyframe."""
        if isinstance(record, KeyframeRecord):
            self.keyframes += 1
            self.times.append(record.time_s)


@pytest.fixture(params=["rtsp", "http"])
def camera(request: pytest.FixtureRequest, free_port: int) -> Iterator[CameraProcess]:
    """A camera of each kind, where what it needs is installed."""
    if request.param == "http" and shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    if request.param == "rtsp" and subprocess.run([PYTHON, "-c", NEEDED], capture_output=True, check=False).returncode:
        pytest.skip("GStreamer's RTSP server is not installed for the system's Python")
    found = CameraProcess(request.param, free_port)
    yield found
    found.end()


def open_files() -> int:
    """How many files and sockets this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def live_threads() -> list[str]:
    """Threads of live sources that run."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("live")]


async def until(condition: Callable[[], object]) -> None:
    """Ask until it is so; a bounded wait."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what other processes do sets no event here
            await asyncio.sleep(0.05)


async def follow_through(
    camera: CameraProcess, stages: Stages, out: Path, cuts: list[Cut], between: int
) -> tuple[Results, list[int]]:
    """Follow a camera through its cuts, `between` keyframes before each; results, and open files after each return."""
    limits = {"live__open_timeout_s": 3.0, "live__read_timeout_s": 2.0, "live__reconnect__first_wait_s": 0.2}
    settings = settings_for(stages, **limits, live__reconnect__max_wait_s=1.0, pipeline__retry_for_s=30.0)
    watch, files = Watch(), list[int]()
    camera.start()
    job = Job(Path("camera"), out, stream="yard", live=LiveSource(camera.url, deadline_s=5))
    recorder = TimingRecorder(1000, keep_last=True)
    run = asyncio.create_task(run_pipeline(job, settings, watch, recorder=recorder))
    try:
        for cut in [*cuts, None]:
            reached = watch.keyframes + between
            await until(lambda: run.done() or watch.keyframes >= reached)  # noqa: B023 - awaited here
            files.append(open_files())
            if cut is not None:
                camera.cut(cut)
                await asyncio.sleep(1 if cut == "killed" else 3)
                await asyncio.to_thread(camera.end)
                camera.start()
    finally:
        run.cancel()
        await asyncio.wait([run])
    assert run.cancelled()
    return read_results(out), files


async def check(camera: CameraProcess, out: Path, cuts: list[Cut], between: int) -> None:
    """Follow a camera through its cuts, and see that all is there and all is let go."""
    files_before = open_files()
    async with stand_ins() as stages:
        results, files = await follow_through(camera, stages, out, cuts, between)
    counts = results.counts
    assert counts.gaps >= len(cuts)
    assert f"the source was away {counts.gaps} times" in results.warnings
    assert counts.keyframes >= between * (len(cuts) + 1)
    assert counts.failed == counts.shed == counts.dropped == 0
    assert max(files) - files[0] <= 3
    camera.end()
    await until(lambda: live_threads() == [] and open_files() <= files_before)


@pytest.mark.slow
async def test_a_camera_is_cut_off_once(camera: CameraProcess, tmp_path: Path) -> None:
    """The run goes on with the next connection, the gap is told, nothing is left open."""
    await check(camera, tmp_path, ["killed"], between=5)


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_a_camera_is_cut_off_three_times_in_a_minute(camera: CameraProcess, tmp_path: Path) -> None:
    """Twice it vanishes, once it holds the connection and says nothing."""
    await check(camera, tmp_path, ["killed", "silent", "killed"], between=36)
