"""A broker that is told of events, by MQTT.

`TOPIC/STREAM/ACTION` has the last news of that action as JSON, `TOPIC/STREAM/ACTION/image` its best image, and
`TOPIC/STREAM` says `online` while there is somebody who tells, else `offline`; the broker keeps all of them for those
who come later. The library's thread keeps the connection up; all that is decided is decided in the event loop.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from pipeline_ver2.config_events import MqttConfig
from pipeline_ver2.errors import SinkError
from pipeline_ver2.events import Notice

ONLINE, OFFLINE = "online", "offline"

_ACK_WAIT_S = 10.0
_STOP_WAIT_S = 0.5
_CONNECT_WAIT_S = 5.0
_RECONNECT_S = (1, 30)
_KEEP_ALIVE_S = 30
_CALLS = ("on_connect", "on_connect_fail", "on_disconnect", "on_publish")


class MqttSink:
    """One connection to a broker, from enter to exit; it comes back by itself.

    Args:
        config: The broker.
        stream: What the source is called.
    """

    def __init__(self, config: MqttConfig, stream: str) -> None:
        self._config = config
        self.name = f"mqtt {config.host}:{config.port}"
        self._topic = f"{config.topic}/{level(stream)}"
        self._stream = stream
        self._kept: dict[str, bytes] = {}
        """What the broker is to keep, by topic: told again after each connection, for it may have forgotten."""
        self._unacknowledged: dict[int, asyncio.Future[None]] = {}
        self._problem: str | None = None
        self._reason = "unreachable"
        self._known = asyncio.Event()
        """Whether the last try to connect has come to something."""
        self._client: paho.Client | None = None

    async def __aenter__(self) -> Self:
        config, loop = self._config, asyncio.get_running_loop()
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"zroact-{secrets.token_hex(6)}")
        if config.username is not None:
            client.username_pw_set(config.username, config.password)
        if config.tls:
            client.tls_set_context(await asyncio.to_thread(ssl.create_default_context))
        client.will_set(self._topic, OFFLINE, qos=1, retain=True)
        client.reconnect_delay_set(*_RECONNECT_S)
        client.connect_timeout = _CONNECT_WAIT_S
        for name in _CALLS:
            setattr(client, name, _in_loop(loop, getattr(self, f"_{name}")))
        client.connect_async(config.host, config.port, _KEEP_ALIVE_S)
        client.loop_start()
        self._client = client
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is None:
            return
        client, self._client = self._client, None
        try:
            if self._is_connected:
                with suppress(SinkError, TimeoutError):
                    async with asyncio.timeout(_STOP_WAIT_S):
                        await self._publish(client, self._topic, OFFLINE.encode())
        finally:
            client.disconnect()
            await _stop(client)

    async def deliver(self, notice: Notice) -> None:
        """Publish the news of an action, and the image, if there is a connection; returns when the broker has it.

        Raises:
            SinkError: There is none, or the broker did not say that it has it.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_WAIT_S):
                await self._known.wait()
        if self._client is None or not self._is_connected:
            raise SinkError(self._problem or "no answer from the broker", reason=self._reason)
        for topic, payload in self._news(notice).items():
            await self._publish(self._client, topic, payload)
            self._kept[topic] = payload

    @property
    def _is_connected(self) -> bool:
        return self._known.is_set() and self._problem is None

    def _news(self, notice: Notice) -> dict[str, bytes]:
        event = notice.event
        topic = f"{self._topic}/{level(event.action)}"
        news = {topic: event.model_dump_json(exclude_none=True).encode()}
        if notice.jpeg is not None:
            news[f"{topic}/image"] = notice.jpeg
        if self._config.discovery is not None:
            news |= self._discovery(self._config.discovery, event.action, topic)
        return news

    def _discovery(self, prefix: str, action: str, topic: str) -> dict[str, bytes]:
        """What Home Assistant needs to show an action as a sensor that is on while an event goes on."""
        device, sensor = f"zroact_{_word(self._stream)}", f"zroact_{_word(self._stream)}_{_word(action)}"
        config = {
            "name": action,
            "unique_id": sensor,
            "state_topic": topic,
            "value_template": "{{ 'OFF' if value_json.state == 'ended' else 'ON' }}",
            "json_attributes_topic": topic,
            "availability_topic": self._topic,
            "device": {"identifiers": [device], "name": f"ZroAct {self._stream}"},
        }
        return {f"{prefix}/binary_sensor/{sensor}/config": json.dumps(config).encode()}

    async def _publish(self, client: paho.Client, topic: str, payload: bytes) -> None:
        sent = client.publish(topic, payload, qos=1, retain=True)
        if sent.rc != paho.MQTT_ERR_SUCCESS:
            raise SinkError(paho.error_string(sent.rc))
        # The acknowledgement comes through the loop, so it cannot have come yet.
        acknowledged = self._unacknowledged[sent.mid] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_ACK_WAIT_S):
                await acknowledged
        except TimeoutError as error:
            raise SinkError(f"no acknowledgement within {_ACK_WAIT_S:g} s", reason="timeout") from error
        finally:
            self._unacknowledged.pop(sent.mid, None)

    def _on_connect(self, _client: paho.Client, _data: object, _flags: object, code: ReasonCode, _more: object) -> None:
        if code.is_failure:
            self._fail(f"refused: {code} (events.mqtt.username, events.mqtt.password)", "refused")
            return
        self._problem = None
        self._known.set()
        if self._client is not None:
            for topic, payload in {self._topic: ONLINE.encode(), **self._kept}.items():
                self._client.publish(topic, payload, qos=1, retain=True)

    def _on_connect_fail(self, _client: paho.Client, _data: object) -> None:
        self._fail("no connection", "unreachable")

    def _on_disconnect(
        self, _client: paho.Client, _data: object, _flags: object, code: ReasonCode, _more: object
    ) -> None:
        if self._is_connected:
            self._fail(f"connection lost: {code}", "unreachable")

    def _on_publish(self, _client: paho.Client, _data: object, mid: int, _code: object, _more: object) -> None:
        acknowledged = self._unacknowledged.get(mid)
        if acknowledged is not None and not acknowledged.done():
            acknowledged.set_result(None)

    def _fail(self, problem: str, reason: str) -> None:
        self._problem, self._reason = problem, reason
        self._known.set()


def level(name: str) -> str:
    """A name as one level of a topic."""
    return re.sub(r"[/+#\x00]", "_", name) or "_"


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., None]) -> Callable[..., None]:
    """A callback for the library's thread that makes the call in the loop, if that runs still."""

    def pass_on(*arguments: Any) -> None:  # noqa: ANN401 - whatever the library gives
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(call, *arguments)

    return pass_on


async def _stop(client: paho.Client) -> None:
    """End the library's thread; if a connection keeps it, it ends by itself later, as it keeps no process alive."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        client.loop_stop()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=stop, name="mqtt stop", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOP_WAIT_S):
            await stopped.wait()
