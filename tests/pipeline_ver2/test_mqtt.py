"""Events on a real broker: kept for those who come later, whatever becomes of the broker or of us."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config_events import MqttConfig
from pipeline_ver2.mqtt import MqttSink, level
from pipeline_ver2.sinks import Outlet, flush
from tests.broker import MOSQUITTO, PATIENCE_S, broker, watcher
from tests.news import notice

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="needs mosquitto, Debian's package of that name")

WALK = "zroact/gate/walk"


def outlet(port: int, **settings: Any) -> Outlet:  # noqa: ANN401 - values of any key
    """An outlet to a broker on this machine."""
    config = MqttConfig.model_validate({"host": "127.0.0.1", "port": port, **settings})
    return Outlet(MqttSink(config, "gate"), queue_size=8, retries=None, retry_s=0.05)


async def run(*command: str) -> None:
    """Run a tool."""
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)


def start(script: str) -> subprocess.Popen[str]:
    """A Python process that can import what tests can."""
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True)


async def test_news_is_published_and_kept(tmp_path: Path, free_port: int) -> None:
    """Each piece on the topic of its action with the image beside it; who comes later sees the last ones."""
    async with broker(tmp_path, free_port), watcher(free_port) as early:
        async with outlet(free_port) as out:
            out.offer(notice(0))
            out.offer(notice(0, "ended", jpeg=b"better"))
            out.offer(notice(3, action="run/#+"))
            await flush([out], PATIENCE_S)
            assert out.shortfall is None
            async with watcher(free_port) as late:
                await late.until(lambda: len(late.seen) >= 5)
            assert all(kept for _, _, kept in late.seen)
            assert {topic: late.on(topic)[-1] for topic, _, _ in late.seen} == {
                "zroact/gate": b"online",
                WALK: early.on(WALK)[-1],
                f"{WALK}/image": b"better",
                "zroact/gate/run___": early.on("zroact/gate/run___")[-1],
                "zroact/gate/run___/image": b"jpeg",
            }
        assert [json.loads(payload)["state"] for payload in early.on(WALK)] == ["begun", "ended"]
        await early.until(lambda: early.on("zroact/gate")[-1:] == [b"offline"])
        assert early.on("zroact/gate") == [b"online", b"offline"]


@pytest.mark.slow
@pytest.mark.fault("E2")
async def test_a_broker_that_comes_later(tmp_path: Path, free_port: int) -> None:
    """What happened meanwhile is told when it is there, in order."""
    async with outlet(free_port) as out:
        out.offer(notice(0))
        out.offer(notice(0, "ended"))
        await flush([out], 0.2)
        async with broker(tmp_path, free_port), watcher(free_port) as seen:
            await flush([out], PATIENCE_S)
            await seen.until(lambda: len(seen.on(WALK)) == 2)
            assert [json.loads(payload)["state"] for payload in seen.on(WALK)] == ["begun", "ended"]
    assert out.shortfall is None


@pytest.mark.slow
@pytest.mark.fault("E2")
async def test_a_broker_that_dies_and_comes_back(tmp_path: Path, free_port: int) -> None:
    """It has forgotten everything, and is told again what it is to keep, then what happened meanwhile."""
    async with outlet(free_port) as out:
        async with broker(tmp_path, free_port) as first:
            out.offer(notice(0, "ended"))
            await flush([out], PATIENCE_S)
            first.kill()
            first.wait(PATIENCE_S)
        out.offer(notice(1, action="run"))
        async with broker(tmp_path, free_port):
            await flush([out], PATIENCE_S)
            async with watcher(free_port) as late:
                await late.until(lambda: {WALK, "zroact/gate/run"} <= {topic for topic, _, _ in late.seen})
            assert late.on("zroact/gate") == [b"online"]
            assert json.loads(late.on(WALK)[0])["id"] == "run-0"
    assert out.shortfall is None


@pytest.mark.fault("E2")
@pytest.mark.parametrize("login", [{}, {"username": "camera", "password": "HUSH"}])
async def test_a_broker_that_refuses_us(
    tmp_path: Path, free_port: int, login: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so at once, the end says what was not told and which keys to look at, and neither the password."""
    (tmp_path / "passwords").write_text("")
    settings = ("allow_anonymous false", f"password_file {tmp_path / 'passwords'}")
    with caplog.at_level(logging.DEBUG):
        async with broker(tmp_path, free_port, *settings), outlet(free_port, **login) as out:
            out.offer(notice(0))
            async with asyncio.timeout(PATIENCE_S):
                while "refused" not in caplog.text:
                    await flush([out], 0.05)
    assert out.shortfall == (
        f"events: mqtt 127.0.0.1:{free_port}: 1 of 1 not delivered (1 unsent); last problem: "
        "refused: Not authorized (events.mqtt.username, events.mqtt.password)"
    )
    assert "HUSH" not in caplog.text


async def test_a_name_and_a_password(tmp_path: Path, free_port: int) -> None:
    """With the right ones the broker takes what it is told."""
    passwords = tmp_path / "passwords"
    tool = shutil.which("mosquitto_passwd")
    assert tool is not None
    await run(tool, "-b", "-c", str(passwords), "camera", "HUSH")
    settings = ("allow_anonymous false", f"password_file {passwords}")
    async with broker(tmp_path, free_port, *settings):
        async with outlet(free_port, username="camera", password="HUSH", topic="home/zroact") as out:
            out.offer(notice(0))
            await flush([out], PATIENCE_S)
        async with watcher(free_port, login=("camera", "HUSH")) as late:
            await late.until(lambda: late.on("home/zroact/gate/walk"))
    assert out.shortfall is None


# The library leaves a socket without a handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_tls(tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose certificate is trusted is told; one whose is not is told nothing."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    making = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    making += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await run(openssl, *making)
    settings = ("allow_anonymous true", f"certfile {certificate}", f"keyfile {key}")
    async with broker(tmp_path, free_port, *settings):
        async with outlet(free_port, tls=True) as distrustful:
            distrustful.offer(notice(0))
            async with asyncio.timeout(PATIENCE_S):
                while "no connection" not in (distrustful.problem or ""):
                    await flush([distrustful], 0.05)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with outlet(free_port, tls=True) as trustful:
            trustful.offer(notice(0))
            await flush([trustful], PATIENCE_S)
    assert (dict(distrustful.lost), trustful.shortfall) == ({"unsent": 1}, None)
    async with asyncio.timeout(PATIENCE_S):
        while any("mqtt" in thread.name for thread in threading.enumerate()):  # noqa: ASYNC110 - threads set no event
            await asyncio.sleep(0.05)
    gc.collect()


@pytest.mark.fault("E2")
async def test_a_broker_that_hangs(free_port: int) -> None:
    """It accepts the connection and says nothing: nobody waits for it, at the end neither."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", free_port))
        silent.listen()
        async with asyncio.timeout(PATIENCE_S):
            async with outlet(free_port) as out:
                for number in range(10):
                    out.offer(notice(number))
                await flush([out], 0.1)
    assert out.lost["unsent"] == 8
    assert out.lost.total() == 10


async def test_the_will_says_offline(tmp_path: Path, free_port: int) -> None:
    """Whoever is killed is offline, and what it has told last stays."""
    script = f"""
import asyncio
from tests.news import notice
from tests.pipeline_ver2.test_mqtt import flush, outlet
async def main():
    async with outlet({free_port}) as out:
        out.offer(notice(0))
        await flush([out], {PATIENCE_S})
        print("told", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    async with broker(tmp_path, free_port), watcher(free_port) as seen:
        process = start(script)
        try:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "told\n"
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE_S)
        await seen.until(lambda: seen.on("zroact/gate")[-1:] == [b"offline"])
        assert json.loads(seen.on(WALK)[0])["state"] == "begun"


async def test_home_assistant_finds_the_sensor(tmp_path: Path, free_port: int) -> None:
    """With `discovery` an action is a sensor that is on while an event goes on, and away while nobody tells."""
    async with broker(tmp_path, free_port), watcher(free_port) as seen:
        async with outlet(free_port, discovery="homeassistant") as out:
            out.offer(notice(0))
            await flush([out], PATIENCE_S)
        topic = "homeassistant/binary_sensor/zroact_gate_walk/config"
        await seen.until(lambda: seen.on(topic))
    sensor = json.loads(seen.on(topic)[0])
    assert (sensor["state_topic"], sensor["availability_topic"]) == (WALK, "zroact/gate")
    assert (sensor["unique_id"], sensor["name"]) == ("zroact_gate_walk", "walk")


@pytest.mark.parametrize(
    ("name", "one"), [("walk", "walk"), ("a/b", "a_b"), ("+#\0", "___"), ("", "_"), ("Tür 1", "Tür 1")]
)
def test_a_name_is_one_level_of_a_topic(name: str, one: str) -> None:
    """Whatever it is."""
    assert level(name) == one
