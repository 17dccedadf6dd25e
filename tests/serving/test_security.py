"""Who may use the job server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest
from fastapi import FastAPI

from pipeline_ver2.config import ServingConfig
from pipeline_ver2.errors import ConfigError
from serving.security import Guard, check_exposure, is_loopback
from serving.sessions import COOKIE, Sessions
from tests.servers import served


@contextmanager
def guarded(token: str | None) -> Iterator[str]:
    """An application behind the guard."""
    app = FastAPI()
    app.add_middleware(Guard, token=token)
    app.add_api_route("/jobs", lambda: "in", methods=["GET", "POST"])
    app.add_api_route("/livez", lambda: "alive")
    with served(app, until_ready=False) as url:
        yield url


async def status(url: str, path: str = "/jobs", **headers: str) -> int:
    """The status of a request with these headers."""
    async with aiohttp.ClientSession() as session, session.post(url + path, headers=headers) as reply:
        if reply.status in {401, 403}:
            assert reply.content_type == "application/problem+json"
            assert ("WWW-Authenticate" in reply.headers) == (reply.status == 401)
        return reply.status


@pytest.mark.parametrize(
    ("host", "token", "refused"),
    [
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("::", None, True),
        ("192.168.0.7", None, True),
        ("example.org", None, True),
        ("0.0.0.0", "secret", False),
    ],
)
def test_elsewhere_needs_a_token(host: str, token: str | None, refused: bool) -> None:  # noqa: FBT001
    """Without one the start is refused and the key named."""
    config = ServingConfig(host=host, token=token)
    assert is_loopback(host) == (token is None and not refused)
    if refused:
        with pytest.raises(ConfigError, match=r"serving\.host: .* needs a serving\.token"):
            check_exposure(config)
    else:
        check_exposure(config)


async def test_a_token_opens() -> None:
    """The right one, in the right form; whether the server lives is told to everybody."""
    with guarded("secret") as url:
        assert await status(url, Authorization="Bearer secret") == 200
        assert await status(url, Authorization="bearer  secret") == 200
        for wrong in ("", "Bearer", "Bearer secre", "Bearer secret2", "Basic secret", "secret", "Bearer s\u00e9cret"):
            assert await status(url, Authorization=wrong) == 401, wrong
        assert await status(url) == 401
        async with aiohttp.ClientSession() as session, session.get(f"{url}/livez") as reply:
            assert reply.status == 200


@pytest.mark.fault("O8")
async def test_browsers_that_act_for_others() -> None:
    """Without a token, a page of elsewhere and a name that only resolves to us are refused; our own page is not."""
    with guarded(None) as url:
        host = url.removeprefix("http://")
        assert await status(url) == 200
        assert await status(url, Origin=url) == 200
        assert await status(url, Host="localhost:8000") == 200
        assert await status(url, Origin="https://evil.example") == 403
        assert await status(url, Origin="null") == 403
        assert await status(url, Host="evil.example") == 403
        assert await status(url, Host="[::1") == 403
        assert await status(url, Origin="http://[x") == 403
        assert await status(url, Host=f"evil.example:{host.rpartition(':')[2]}") == 403


async def asked(url: str, method: str = "POST", path: str = "/jobs", **headers: str) -> int:
    """The status of a request with the cookie of a sign-in."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    cookie = {"Cookie": f"{COOKIE}={Sessions('secret').issue()}"}
    async with aiohttp.ClientSession() as session, session.request(method, url + path, headers=cookie | named) as reply:
        return reply.status


async def test_a_cookie_opens_as_the_token_does() -> None:
    """To our own page; a wrong token beside it is refused."""
    with guarded("secret") as url:
        assert await asked(url, "GET") == 200
        assert await asked(url, "GET", Sec_Fetch_Site="none") == 200
        assert await asked(url, Origin=url) == 200
        assert await asked(url, Sec_Fetch_Site="same-origin") == 200
        assert await asked(url, Origin=url, Sec_Fetch_Site="same-origin") == 200
        assert await asked(url, Origin=url, Authorization="Bearer wrong") == 401
        assert await status(url, Cookie=f"{COOKIE}={Sessions('another').issue()}", Origin=url) == 401
        assert await status(url, Cookie=f"{COOKIE}=secret", Origin=url) == 401


@pytest.mark.fault("O8")
async def test_a_cookie_serves_no_foreign_page() -> None:
    """Neither one of elsewhere nor one of another port of this machine; nor a request that says nothing of itself."""
    with guarded("secret") as url:
        assert await asked(url) == 403
        assert await asked(url, Sec_Fetch_Site="none") == 403
        for origin in ("https://evil.example", "null", "http://127.0.0.1:9", "http://[x"):
            assert await asked(url, Origin=origin) == 403
            assert await asked(url, "GET", Origin=origin) == 403
        for site in ("same-site", "cross-site"):
            assert await asked(url, Origin=url, Sec_Fetch_Site=site) == 403
            assert await asked(url, "GET", Sec_Fetch_Site=site) == 403
        assert await status(url, Authorization="Bearer secret", Origin="https://evil.example") == 200
