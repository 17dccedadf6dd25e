"""Signing in with a browser: a cookie that stands for the token, and holds nothing of it."""

from __future__ import annotations

import hashlib
import hmac
import time

COOKIE = "zroact_session"
LIFETIME_S = 30 * 24 * 3600

_PURPOSE = b"zroact job server session until "


class Sessions:
    """Makes and checks cookies. Another token, and those made with this one are worth nothing; no list is kept.

    Args:
        token: What clients of the API send.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def is_token(self, given: str) -> bool:
        """Whether this is the token; takes as long whatever it is."""
        return hmac.compare_digest(given.encode(), self._token)

    def issue(self) -> str:
        """A new cookie's value."""
        until = str(int(time.time()) + LIFETIME_S)
        return f"{until}.{self._sign(until)}"

    def is_valid(self, cookie: str) -> bool:
        """Whether a cookie was made here and is not too old."""
        until, _, signature = cookie.partition(".")
        signed = hmac.compare_digest(signature.encode(), self._sign(until).encode())
        return signed and int(until) > time.time()

    def _sign(self, until: str) -> str:
        return hmac.new(self._token, _PURPOSE + until.encode(), hashlib.sha256).hexdigest()
