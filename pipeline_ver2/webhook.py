"""News by HTTP POST, signed and named as Standard Webhooks (https://www.standardwebhooks.com) have it.

`webhook-id` is the same for the same news however often it is sent, so that receivers can tell a repetition.
`webhook-signature` is `v1,` and the HMAC-SHA256 of id, timestamp and body in base64; without a secret there is none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from datetime import datetime
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel

from pipeline_ver2.config_events import WebhookConfig, key_of
from pipeline_ver2.errors import SinkError, SinkRefused

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"

_GONE = 410
_MAX_RETRY_AFTER_S = 3600.0


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`.

    Args:
        secret: `whsec_` and the key in base64.
        message_id: The value of `webhook-id`.
        timestamp: The value of `webhook-timestamp`, Unix seconds.
        body: What is posted.
    """
    content = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key_of(secret), content, hashlib.sha256)).decode()


def message(kind: str, at: datetime, data: BaseModel) -> bytes:
    """The body of news: its kind, when it was new, and what it is about."""
    return json.dumps({"type": kind, "timestamp": at.isoformat(), "data": data.model_dump(mode="json")}).encode()


class Webhook:
    """A URL that is posted to, with connections of its own from enter to exit."""

    def __init__(self, config: WebhookConfig) -> None:
        self._config = config
        parts = urlsplit(config.url)
        self.place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        """Where it is, without what may be secret."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        limit = self._config.timeout_s
        timeout = aiohttp.ClientTimeout(total=limit, connect=limit, sock_read=limit)
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, message_id: str, body: bytes) -> None:
        """Post JSON once; redirects are not followed.

        Raises:
            SinkError: It was not taken; another try may help.
            SinkRefused: It was not taken, nor will it be.
        """
        if self._session is None:
            raise RuntimeError("the webhook was not entered")
        headers = self._headers(message_id, body)
        try:
            # The reply's body is not read: it could be of any size.
            async with self._session.post(self._config.url, data=body, headers=headers, allow_redirects=False) as reply:
                self._judge(reply)
        except TimeoutError as error:
            raise SinkError(f"{self.place}: no reply within {self._config.timeout_s:g} s", reason="timeout") from error
        except aiohttp.ClientError as error:
            cause = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise SinkError(f"{self.place}: {cause}") from error

    def _headers(self, message_id: str, body: bytes) -> dict[str, str]:
        timestamp = int(time.time())
        headers = {ID_HEADER: message_id, TIMESTAMP_HEADER: str(timestamp), "Content-Type": "application/json"}
        if self._config.secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._config.secret, message_id, timestamp, body)
        return headers

    def _judge(self, reply: aiohttp.ClientResponse) -> None:
        told = f"{self.place}: HTTP {reply.status}"
        if 300 <= reply.status < 400:
            raise SinkRefused(f"{told}, and redirects are not followed", reason="redirect")
        if reply.status == _GONE:
            raise SinkRefused(f"{told}: nobody listens any more", reason="gone")
        if not reply.ok:
            raise SinkError(told, reason="http", retry_after_s=_retry_after(reply.headers.get("Retry-After", "")))


def _retry_after(text: str) -> float:
    """Seconds, where the header tells seconds."""
    return min(float(text), _MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else 0.0
