"""The life of a daemon's process: how it starts, refuses to start, and ends."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from fastapi import FastAPI

from pipeline_ver2.config import Config
from pipeline_ver2.supervisor import STOP_GRACE_S
from serving.workers.process import DRAIN_S, EXIT_FATAL, EXIT_OK, EXIT_USAGE, RELEASE_S, daemon_main, listen
from serving.workers.stage1_server import build_app
from tests.servers import PATIENCE_S, spawned

STAGE1 = ["-m", "serving.workers.stage1_server", "--port", "0"]
EMULATED = [*STAGE1, "--set", "stage1.engine=emulated", "--set", "stage1.clip_length=1"]

# A daemon whose one request never ends by itself, nor in a thread that cannot be cancelled.
STUBBORN = """
import asyncio, sys, threading
from contextlib import asynccontextmanager
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from serving.workers import process
from serving.workers.daemon import create_app

@asynccontextmanager
async def lifespan(app):
    yield
    print("released", flush=True)

async def ready():
    pass

app = create_app("t", lifespan=lifespan, ready=ready, registry=CollectorRegistry(), max_body_mb=1, max_bodies=9)

@app.get("/hang")
async def hang():
    print("hanging", flush=True)
    await asyncio.Event().wait()

@app.get("/thread")
async def thread():
    print("hanging", flush=True)
    await asyncio.to_thread(threading.Event().wait)

drain_s, process.RELEASE_S = int(sys.argv[1]), 0.5
process.set_up_logging()
sys.exit(process.run_daemon(app, stage="stage1", host="127.0.0.1", port=0, drain_s=drain_s))
"""

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def _never(_config: Config) -> FastAPI:
    raise AssertionError("the application must not be built")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "stage1.fall=1"], "stage1.fall: unknown key"),
        (["--set", "stage1.batch_size=9"], "stage1"),
        (["--set", "nonsense"], "--set nonsense: expected KEY=VALUE"),
        (["--port", "70000"], "stage1.port"),
        (["--config", "/nowhere/config.json"], "/nowhere/config.json"),
    ],
)
def test_an_unusable_configuration_is_one_line(
    arguments: list[str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Exit 2 and one line that names the key, without a traceback."""
    assert daemon_main("stage1", _never, arguments) == EXIT_USAGE
    (record,) = caplog.records
    assert said in record.getMessage()
    assert record.exc_info is None


def test_unknown_options_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """An option nobody knows is exit 2, as for every command."""
    with pytest.raises(SystemExit, match="2"):
        daemon_main("stage1", _never, ["--fast"])
    assert "--fast" in capsys.readouterr().err


def test_a_taken_port_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Port in use: exit 2 and one line that names the key and the port."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        arguments = ["--port", str(port), "--set", "stage1.engine=emulated"]
        assert daemon_main("stage1", build_app, arguments) == EXIT_USAGE
    assert [record.getMessage() for record in caplog.records] == [f"stage1.port: {port} on 127.0.0.1 is already in use"]


def test_replies_are_sent_at_once() -> None:
    """The listener names TCP: by that asyncio knows to switch Nagle's delay off on every accepted connection."""
    with listen("stage1", "127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_an_address_of_others_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """An address that is not ours: exit 2, naming the key."""
    arguments = ["--host", "192.0.2.1", "--port", "0", "--set", "stage1.engine=emulated"]
    assert daemon_main("stage1", build_app, arguments) == EXIT_USAGE
    assert caplog.records[-1].getMessage().startswith("stage1.host: cannot listen on 192.0.2.1")


def test_a_daemon_that_cannot_work_stops(tmp_path: Path) -> None:
    """A missing model file ends the process with one line that names the key, no traceback."""
    missing = tmp_path / "gone.onnx"
    process = subprocess.run(
        [sys.executable, *STAGE1, "--set", f"stage1.model_path={missing}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert process.returncode == EXIT_USAGE
    (line,) = [line for line in process.stderr.splitlines() if "[ERROR]" in line]
    assert line.endswith(f"stage1 cannot work: stage1.model_path: {missing} is no file")
    assert "Traceback" not in process.stderr


def test_nobody_is_killed_who_would_have_ended() -> None:
    """Whoever started a daemon waits for longer than the daemon takes at most."""
    assert DRAIN_S + RELEASE_S < STOP_GRACE_S


@pytest.mark.fault("O6")
async def test_sigterm_lets_running_requests_finish(tmp_path: Path) -> None:
    """After SIGTERM the request that runs gets its answer, then the process ends with 0."""
    arguments = [*EMULATED, "--set", "stage1.emulated.service_s=1.5"]
    with spawned(arguments, tmp_path) as daemon:
        async with aiohttp.ClientSession(daemon.url) as http:
            body = {"inputs": [_clip_tensor()]}
            request = asyncio.create_task(http.post("/v2/models/yowov3/infer", json=body))
            await _until_running(http)
            daemon.process.terminate()
            async with await request as reply:
                assert reply.status == 200
                assert (await reply.json())["outputs"][0]["data"] == [0]
        assert await asyncio.to_thread(daemon.process.wait, PATIENCE_S) == EXIT_OK
        assert daemon.log().rstrip().endswith("[INFO] stage1 has stopped")


@pytest.mark.slow
async def test_what_outlasts_the_drain_is_cancelled_and_counted(tmp_path: Path) -> None:
    """Requests that do not end in time are cancelled, their number is logged, and everything is released."""
    with spawned(["-c", STUBBORN, "1"], tmp_path) as daemon:
        request = await _hang(daemon.url, "/hang", daemon.process)
        daemon.process.terminate()
        assert await asyncio.to_thread(daemon.process.wait, PATIENCE_S) == EXIT_OK
        assert daemon.process.stdout is not None
        assert daemon.process.stdout.read() == b"released\n"
        assert "Cancel 1 running task(s)" in daemon.log()
        await asyncio.gather(request, return_exceptions=True)


@pytest.mark.slow
async def test_a_second_interrupt_skips_the_drain(tmp_path: Path) -> None:
    """Ctrl-C twice does not wait for anybody."""
    with spawned(["-c", STUBBORN, "600"], tmp_path) as daemon:
        request = await _hang(daemon.url, "/hang", daemon.process)
        daemon.process.send_signal(signal.SIGINT)
        await _refused(daemon.url)
        daemon.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(daemon.process.wait, PATIENCE_S) == EXIT_OK
        await asyncio.gather(request, return_exceptions=True)


@pytest.mark.slow
async def test_a_stuck_thread_cannot_keep_the_process(tmp_path: Path) -> None:
    """A thread that never returns is left behind: the process ends itself, and says so."""
    with spawned(["-c", STUBBORN, "1"], tmp_path) as daemon:
        request = await _hang(daemon.url, "/thread", daemon.process)
        daemon.process.terminate()
        assert await asyncio.to_thread(daemon.process.wait, PATIENCE_S) == EXIT_FATAL
        assert "did not end within 1.5 s: ending it hard" in daemon.log()
        await asyncio.gather(request, return_exceptions=True)


@pytest.mark.fault("O5")
def test_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    """Kill -9 of the parent ends the daemon, because its standard input ends."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *EMULATED, "--watch-stdin"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdout is not None
        handle = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            ended, _, _ = select.select([handle], [], [], PATIENCE_S)
        finally:
            os.close(handle)
    assert ended


def _clip_tensor() -> dict[str, object]:
    shape = [1, 1, 224, 224, 3]
    return {"name": "clips", "datatype": "UINT8", "shape": shape, "data": [0] * (224 * 224 * 3)}


async def _until_running(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(PATIENCE_S):
        running = False
        while not running:
            async with http.get("/health") as reply:
                running = json.loads(await reply.read())["queue"]["running"]


async def _hang(url: str, path: str, process: subprocess.Popen[bytes]) -> asyncio.Task[None]:
    async def get() -> None:
        async with aiohttp.ClientSession() as http, http.get(url + path):
            pass

    request = asyncio.create_task(get())
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"hanging\n"
    return request


async def _refused(url: str) -> None:
    """Wait until nobody listens there any more."""
    host, port = url.removeprefix("http://").split(":")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                return
            writer.close()
