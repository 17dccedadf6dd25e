"""The configuration of events, webhooks and the broker."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import Config, load_config
from pipeline_ver2.config_events import key_of
from pipeline_ver2.errors import ConfigError

ROOT = Path(__file__).parents[2]
SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
HOOK = {"url": "http://receiver/hook"}


def events(**settings: Any) -> Config:  # noqa: ANN401 - values of any key
    """A configuration with these settings of events."""
    return load_config(None, {f"events.{key}": value for key, value in settings.items()}, environ={})


def test_nobody_is_told_unless_asked_for() -> None:
    """Events are written to a file; there is no webhook and no broker."""
    settings = Config().events
    assert (settings.file, settings.webhook, settings.mqtt) == (True, None, None)
    assert Config().serving.webhook is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("webhook", {}, r"events\.webhook\.url: Field required"),
        ("webhook", {"url": "ftp://receiver"}, r"events\.webhook\.url: .*http"),
        ("webhook", {"url": "receiver/hook"}, r"events\.webhook\.url: .*http"),
        ("webhook", {**HOOK, "retries": -1}, r"events\.webhook\.retries"),
        ("webhook", {**HOOK, "secret": "whsec_no base64"}, r"events\.webhook\.secret: .*base64"),
        ("webhook", {**HOOK, "secret": "whsec_c2hvcnQ="}, r"events\.webhook\.secret: .*24 to 64 bytes"),
        ("mqtt", {"host": ""}, r"events\.mqtt\.host"),
        ("mqtt", {"host": "h", "topic": "a/#"}, r"events\.mqtt\.topic"),
        ("mqtt", {"host": "h", "password": "p"}, r"events\.mqtt: .*username"),
        ("mqtt", {"host": "h", "usrname": "p"}, r"events\.mqtt\.usrname: unknown key"),
        ("gap_slots", -1, r"events\.gap_slots"),
    ],
)
def test_what_cannot_be_is_named(key: str, value: object, said: str) -> None:
    """An impossible value stops the start and names its key."""
    with pytest.raises(ConfigError, match=said):
        events(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("events.webhook", {"url": "hooks.example/HUSH", "secret": "HUSH"}),
        ("events.webhook", "http://receiver/HUSH"),
        ("events.mqtt", {"host": "h", "username": "u", "password": ["HUSH"]}),
        ("serving.webhook", {**HOOK, "secret": "HUSH"}),
        ("serving.token", ["HUSH"]),
    ],
)
def test_no_message_shows_a_secret(key: str, value: object) -> None:
    """What is wrong is named, not what stands there."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, {key: value}, environ={})
    assert key.rpartition(".")[0] in str(caught.value)
    assert "HUSH" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    """Whoever prints the configuration prints no secrets."""
    broker = {"host": "h", "username": "u", "password": "HUSH-broker"}
    config = events(webhook={"url": "http://receiver/HUSH", "secret": SECRET}, mqtt=broker)
    assert "HUSH" not in repr(config)
    assert SECRET not in repr(config)


def test_secrets_come_from_the_environment() -> None:
    """Beside the shipped file, which leaves both sections out; a password of digits stays one."""
    environ = {
        "ZROACT_EVENTS__WEBHOOK__URL": "http://receiver/hook",
        "ZROACT_EVENTS__WEBHOOK__SECRET": SECRET,
        "ZROACT_EVENTS__MQTT__HOST": "broker",
        "ZROACT_EVENTS__MQTT__USERNAME": "camera",
        "ZROACT_EVENTS__MQTT__PASSWORD": "0123",
        "ZROACT_SERVING__TOKEN": "null",
    }
    config = load_config(ROOT / "config.json", environ=environ)
    assert config.events.webhook is not None
    assert config.events.mqtt is not None
    assert (config.events.webhook.secret, config.events.mqtt.password) == (SECRET, "0123")
    assert config.serving.token is None


def test_the_key_of_a_secret() -> None:
    """The bytes behind the prefix, which may be left out."""
    assert key_of(SECRET) == key_of(SECRET.removeprefix("whsec_")) == b"k" * 24
