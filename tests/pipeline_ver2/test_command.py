"""The command line, as a process of its own: exit codes, one clear line per error, signals, resume."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from aiohttp import web

from pipeline_ver2.results import read_results
from tests.stand_ins import Stages, completion, hang

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "pipeline_ver2" / "realtime_pipeline.py"


async def start(folder: Path, *arguments: str | Path, stages: Stages | None = None, **environment: str) -> Process:
    """Start the script in a folder, led to the stand-ins by the environment."""
    led = {} if stages is None else {"ZROACT_STAGE1__URL": stages.stage1.url, "ZROACT_STAGE2__URL": stages.stage2.url}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ZROACT_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, *arguments, cwd=folder, env={**kept, **led, **environment}, stdout=PIPE, stderr=PIPE
    )


async def run(
    folder: Path, *arguments: str | Path, stages: Stages | None = None, **environment: str
) -> tuple[int, str, str]:
    """Run the script to its end: exit code, standard output, standard error."""
    process = await start(folder, *arguments, stages=stages, **environment)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return await process.wait(), out.decode(), err.decode()


def the_error(err: str) -> str:
    """The one line that says what is wrong; no traceback around it."""
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    return line


def third_slot_hangs(stages: Stages) -> asyncio.Event:
    """Let Stage 2 hang on the third slot; the event tells that it does."""
    reached = asyncio.Event()

    async def rule(request: web.Request, key: str, time: int) -> None:
        if key == "slot-2":
            reached.set()
            await hang(request, key, time)

    stages.stage2.rule = rule
    return reached


async def test_a_run_tells_its_summary_and_where_everything_lies(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Exit 0; the summary and the paths on standard output, the documented log lines on standard error."""
    code, out, err = await run(tmp_path, clip, "--out", "made", "--annotate", stages=stages)

    assert code == 0, err
    assert "13 in 4 Stage 1 batches" in out
    for name in ("results.json", "timeline.json", "timeline.svg", "annotated.mp4"):
        assert f"{name}: made/{name}" in out
        assert (tmp_path / "made" / name).stat().st_size > 0
    assert "[INFO] Slot 3-frame ready for Keyframe Index 33 (slot 0)" in err
    assert "[INFO] Active VLM Semaphore count: 2/2" in err
    assert "[INFO] Total wall-clock time:" in err


async def test_failed_slots_are_exit_3(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """A partial run says so and exits 3; --resume asks for the failed slot again and exits 0."""

    async def spoil(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return completion("no") if key == "slot-1" else None

    stages.stage2.rule = spoil
    code, out, _ = await run(tmp_path, clip, "--out", "made", stages=stages)
    assert code == 3
    assert "4 ok, 1 failed" in out

    stages.stage2.rule = lambda *_: asyncio.sleep(0)
    code, out, _ = await run(tmp_path, clip, "--out", "made", "--resume", stages=stages)
    assert code == 0
    assert stages.stage2.seen["slot-0"] == 1


async def test_usage_and_configuration_are_exit_2(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Unknown keys, impossible values, missing files and used folders are one line naming what is wrong."""
    (tmp_path / "bad.json").write_text(json.dumps({"pipeline": {"keyframe_intervall": 3}}))
    code, _, err = await run(tmp_path, clip, "--config", "bad.json", stages=stages)
    assert (code, the_error(err)) == (2, "error: bad.json: pipeline.keyframe_intervall: unknown key")

    code, _, err = await run(tmp_path, clip, stages=stages, ZROACT_PIPELINE__SLOT_FRAMES="0")
    assert code == 2
    assert "pipeline.slot_frames" in the_error(err)

    code, _, err = await run(tmp_path, clip, "--config", "none.json", stages=stages)
    assert (code, "none.json" in the_error(err)) == (2, True)

    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "results.jsonl").write_text("")
    code, _, err = await run(tmp_path, clip, "--out", "used", stages=stages)
    assert (code, "--resume" in the_error(err)) == (2, True)

    code, _, err = await run(tmp_path, clip, "--keep-failed", stages=stages)
    assert (code, the_error(err)) == (2, "error: --keep-failed goes with --resume")

    code, _, err = await run(tmp_path, clip, "--gate", "some", stages=stages)
    assert (code, "pipeline.gate" in the_error(err)) == (2, True)


@pytest.mark.fault("V9")
async def test_a_missing_or_broken_video_is_exit_1(stages: Stages, tmp_path: Path) -> None:
    """The file is named before any stage is asked."""
    (tmp_path / "text.mp4").write_text("this is no video")
    for name in ("text.mp4", "missing.mp4"):
        code, _, err = await run(tmp_path, name, stages=stages)
        assert (code, name in the_error(err)) == (1, True)
    assert stages.stage1.keys == []


async def test_an_unreachable_stage_is_exit_1(clip: Path, free_port: int, tmp_path: Path) -> None:
    """With --no-spawn and nobody there the line names the stage's address."""
    url = f"http://127.0.0.1:{free_port}"
    code, _, err = await run(tmp_path, clip, "--no-spawn", ZROACT_STAGE1__URL=url, ZROACT_STAGE2__URL=url)
    assert (code, url in the_error(err)) == (1, True)


@pytest.mark.fault("O6")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_in_the_middle_it_keeps_what_there_is(
    clip: Path, stages: Stages, tmp_path: Path, number: signal.Signals
) -> None:
    """A signal while Stage 2 hangs: exit 130 soon, partial results, and --resume goes on to the end."""
    reached = third_slot_hangs(stages)
    process = await start(tmp_path, clip, "--out", "made", stages=stages)
    await asyncio.wait_for(reached.wait(), 30)
    process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), 10)

    assert process.returncode == 130, err
    assert "go on with --resume" in err.decode()
    assert b"Traceback" not in err
    assert read_results(tmp_path / "made").state == "cancelled"
    stages.stage2.rule = lambda *_: asyncio.sleep(0)
    code, _, _ = await run(tmp_path, clip, "--out", "made", "--resume", stages=stages)
    assert code == 0
    assert read_results(tmp_path / "made").counts.ok == 5


@pytest.mark.fault("O5")
async def test_killed_in_the_middle_it_can_be_resumed(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """kill -9 of the run itself: the folder is free again and nothing finished is asked twice."""
    reached = third_slot_hangs(stages)
    process = await start(tmp_path, clip, "--out", "made", stages=stages)
    await asyncio.wait_for(reached.wait(), 30)
    process.kill()
    await process.communicate()

    stages.stage2.rule = lambda *_: asyncio.sleep(0)
    code, _, err = await run(tmp_path, clip, "--out", "made", "--resume", stages=stages)
    results = read_results(tmp_path / "made")
    assert code == 0, err
    assert [slot.state for slot in results.slots] == ["ok"] * 5
    assert stages.stage2.seen["slot-2"] == 2


async def test_not_installed_is_one_clear_line(tmp_path: Path) -> None:
    """The script run by a Python that has not got the package says how to install it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", SCRIPT, cwd=tmp_path, stdout=PIPE, stderr=PIPE
    )
    _, err = await process.communicate()

    assert process.returncode == 1
    assert err.decode().strip() == (
        "zroact-stage2 is not installed for this Python: run `make setup`, or `pip install .`"
    )
