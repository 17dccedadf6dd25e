"""The configuration of events, and of the webhooks and the broker that are told of them."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from pipeline_ver2.config_section import Section

SECRET_PREFIX = "whsec_"  # noqa: S105 - the mark of a secret, no secret
_SECRET_BYTES = range(24, 65)
# Not of a topic's form: wildcards, and what MQTT forbids.
TopicLevels = Annotated[str, Field(min_length=1, pattern=r"^[^+#\x00]+$")]


class WebhookConfig(Section):
    """A URL that is posted to. After a failure the next try comes `retry_s` later, then twice as late each time."""

    url: str = Field(repr=False)
    secret: str | None = Field(default=None, repr=False)
    timeout_s: float = Field(default=10, gt=0)
    retries: int = Field(default=5, ge=0)
    retry_s: float = Field(default=1, gt=0)

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be an http:// or https:// URL")
        return url

    @field_validator("secret")
    @classmethod
    def _is_a_secret(cls, secret: str | None) -> str | None:
        if secret is not None:
            key_of(secret)
        return secret


class JobWebhookConfig(WebhookConfig):
    """A URL that is told of jobs that have ended; tried for longer, because nothing else tells of them."""

    retries: int = Field(default=10, ge=0)
    retry_s: float = Field(default=5, gt=0)


class MqttConfig(Section):
    """A broker. `topic` is what every topic begins with; `discovery` is Home Assistant's prefix, null leaves it out."""

    host: str = Field(min_length=1)
    port: int = Field(default=1883, ge=1, le=65535)
    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    tls: bool = False
    topic: TopicLevels = "zroact"
    discovery: TopicLevels | None = None

    @model_validator(mode="after")
    def _password_has_a_name(self) -> MqttConfig:
        if self.password is not None and self.username is None:
            raise ValueError("a password needs a username")
        return self


class EventsConfig(Section):
    """How slots become events, and who is told of them.

    `gap_slots` slots without an answer do not end an event. A slot that settles late is waited for until
    `look_ahead` later ones have settled. Each of the webhook and the broker has a queue of `queue_size`; at the end
    of a run they have `flush_s` to empty it. The file is begun anew at `max_file_mb`, the one before is kept; of
    images the last `max_images` are kept.
    """

    file: bool = True
    max_file_mb: float = Field(default=16, gt=0)
    max_images: int = Field(default=1000, ge=1)
    gap_slots: int = Field(default=1, ge=0)
    look_ahead: int = Field(default=128, ge=1)
    queue_size: int = Field(default=64, ge=1)
    flush_s: float = Field(default=5, ge=0)
    webhook: WebhookConfig | None = None
    mqtt: MqttConfig | None = None


def key_of(secret: str) -> bytes:
    """The key of a secret in the form of Standard Webhooks: `whsec_` and 24 to 64 bytes in base64.

    Raises:
        ValueError: It has another form.
    """
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"must be {SECRET_PREFIX} and base64") from error
    if len(key) not in _SECRET_BYTES:
        raise ValueError("must hold 24 to 64 bytes in base64")
    return key
