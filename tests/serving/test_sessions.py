"""The cookie that stands for the token."""

from __future__ import annotations

import time

import pytest

from serving import sessions
from serving.sessions import Sessions


def test_the_token() -> None:
    """It and nothing else is it."""
    keys = Sessions("secret")
    assert keys.is_token("secret")
    for wrong in ("", "secre", "secret2", "Secret", "s\u00e9cret"):
        assert not keys.is_token(wrong)


def test_a_cookie_stands_for_the_token() -> None:
    """It is valid, holds nothing of the token, and is worth nothing when the token is another."""
    cookie = Sessions("secret").issue()
    assert Sessions("secret").is_valid(cookie)
    assert "secret" not in cookie
    assert not Sessions("another").is_valid(cookie)


def test_cookies_nobody_made() -> None:
    """Made up, cut, longer lived than they were made."""
    keys = Sessions("secret")
    until, _, signature = keys.issue().partition(".")
    later = f"{int(until) + 1}.{signature}"
    for wrong in ("", ".", until, f"{until}.", later, f"{until}.{signature[:-1]}", f".{signature}", "\u00e9.\u00e9"):
        assert not keys.is_valid(wrong), wrong


def test_a_cookie_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is over."""
    monkeypatch.setattr(sessions, "LIFETIME_S", -1)
    keys = Sessions("secret")
    cookie = keys.issue()
    assert int(cookie.partition(".")[0]) < time.time()
    assert not keys.is_valid(cookie)
