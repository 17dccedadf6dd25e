"""A real MQTT broker in a process of its own, and somebody who looks at what it has."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
PATIENCE_S = 60.0


@asynccontextmanager
async def broker(folder: Path, port: int, *settings: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A broker that forgets everything when it ends; gives its process once it listens."""
    process = _start(folder, port, settings)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(_listens, port):
                assert process.poll() is None, (folder / "mosquitto.log").read_text()
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def _start(folder: Path, port: int, settings: Sequence[str]) -> subprocess.Popen[bytes]:
    assert MOSQUITTO is not None
    file = folder / "mosquitto.conf"
    lines = ["user root", "persistence false", f"listener {port} 127.0.0.1", *(settings or ["allow_anonymous true"])]
    file.write_text("\n".join(lines) + "\n")
    with (folder / "mosquitto.log").open("ab") as log:
        return subprocess.Popen([MOSQUITTO, "-c", str(file)], stdout=log, stderr=log)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@dataclass
class Watcher:
    """What came from a broker, oldest first: topic, payload, and whether it was kept for those who come later."""

    seen: list[tuple[str, bytes, bool]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def on(self, topic: str) -> list[bytes]:
        """Payloads of a topic."""
        return [payload for found, payload, _ in self.seen if found == topic]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for messages until it is so; a bounded wait."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def watcher(port: int, login: tuple[str, str] | None = None) -> AsyncIterator[Watcher]:
    """Somebody who sees all that a broker has and gets, from here on."""
    watched, loop, subscribed = Watcher(), asyncio.get_running_loop(), asyncio.Event()

    def keep(message: paho.MQTTMessage) -> None:
        watched.seen.append((message.topic, bytes(message.payload), message.retain))
        watched.news.set()

    def on_message(_client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        loop.call_soon_threadsafe(keep, message)

    def on_connect(client: paho.Client, _data: object, _flags: object, _code: object, _more: object) -> None:
        client.subscribe("#", qos=1)

    def on_subscribe(_client: paho.Client, _data: object, _mid: int, _codes: object, _more: object) -> None:
        loop.call_soon_threadsafe(subscribed.set)

    client = paho.Client(CallbackAPIVersion.VERSION2)
    if login is not None:
        client.username_pw_set(*login)
    client.on_message, client.on_connect, client.on_subscribe = on_message, on_connect, on_subscribe
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await subscribed.wait()
        yield watched
    finally:
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)
