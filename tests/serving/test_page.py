"""The web page over HTTP: what it may do, what it is made of, who gets in."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from serving import page
from serving.sessions import COOKIE
from tests.serving.conftest import Api, ServeApi

STATIC = Path(page.__file__).with_name("static")
FILES = sorted(path.name for path in STATIC.iterdir())
KINDS = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Namespaces are names, not addresses.
NAMESPACES = {"http://www.w3.org/2000/svg"}


@pytest.fixture
def api(serve_api: ServeApi) -> Api:
    """The API as it is by default."""
    return serve_api()


async def fetch(url: str, **headers: str) -> tuple[int, aiohttp.ClientResponse]:
    """Status and reply."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    async with aiohttp.ClientSession() as session, session.get(url, headers=named) as reply:
        await reply.read()
        return reply.status, reply


def policy(reply: aiohttp.ClientResponse) -> dict[str, str]:
    """What the content security policy says of each kind of content."""
    rules = reply.headers["Content-Security-Policy"].split(";")
    return {name: value for name, _, value in (rule.strip().partition(" ") for rule in rules)}


@pytest.mark.parametrize("name", ["", *FILES])
async def test_files(api: Api, name: str) -> None:
    """Each has its type, is not sniffed, runs nothing that is not ours, and is asked for once while it is the same."""
    url = f"{api.url}/static/{name}" if name else f"{api.url}/"
    status, reply = await fetch(url)
    assert (status, reply.content_type) == (200, KINDS[Path(name or "index.html").suffix])
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    rules = policy(reply)
    assert rules["default-src"] == "'none'"
    assert {rules[kind] for kind in ("script-src", "style-src", "img-src", "media-src", "connect-src")} == {"'self'"}
    assert {rules[kind] for kind in ("base-uri", "frame-ancestors", "trusted-types")} == {"'none'"}
    status, reply = await fetch(url, If_None_Match=reply.headers["ETag"])
    assert status == 304


@pytest.mark.parametrize("name", ["none.js", "..%2fpage.py", "%2e%2e/page.py", "page.py", "%00"])
async def test_other_files(api: Api, name: str) -> None:
    """Nothing else is given out."""
    assert (await fetch(f"{api.url}/static/{name}"))[0] == 404


@pytest.mark.parametrize("name", FILES)
def test_nothing_comes_from_elsewhere(name: str) -> None:
    """No file names another host, has script or style inside markup, or makes markup of text."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    assert set(re.findall(r"""(?:https?:)?//[^\s"'`)<]+""", _without_comments(text, name))) <= NAMESPACES
    assert not re.search(r"\bstyle\s*=|<style|<script(?![^>]*\bsrc=)|\son\w+\s*=\s*[\"']", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)


def _without_comments(text: str, name: str) -> str:
    return re.sub(r"(?m)(^|\s)//.*$", "", text) if name.endswith(".js") else text


def test_what_the_page_asks_for_is_there() -> None:
    """Scripts, styles and pictures that files name."""
    for name in FILES:
        text = (STATIC / name).read_text(encoding="utf-8")
        named = re.findall(r"/static/([\w.-]+)", text) + re.findall(r'from "\./([\w.-]+)"', text)
        assert set(named) <= set(FILES), name


def colours(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Colours by name in a style sheet, for light and for dark."""
    blocks = re.findall(r":root \{(.*?)\}", (STATIC / name).read_text(encoding="utf-8"), re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in blocks)
    return light, {**light, **dark}


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    low, high = sorted(luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read(dark: bool) -> None:  # noqa: FBT001
    """Every colour of text has the contrast that WCAG asks for, on every ground it is used on."""
    named = {**colours("style.css")[dark], **colours("job.css")[dark]}
    pairs = [(text, ground) for text in ("ink", "soft", "accent") for ground in ("ground", "paper", "faint")]
    pairs += [(text, "faint") for text in ("good", "warm")] + [(text, "bad-faint") for text in ("ink", "bad")]
    pairs += [("accent", "accent-faint"), ("on-accent", "accent"), ("paper", "ink"), ("none", "paper")]
    pairs += [(f"c{number}", "paper") for number in range(8)]
    assert [pair for pair in pairs if contrast(named[pair[0]], named[pair[1]]) < 4.5] == []


async def test_without_a_token_nobody_signs_in(api: Api) -> None:
    """The page shows its jobs at once."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{api.url}/session") as reply:
            assert await reply.json() == {"token_needed": False, "signed_in": False}
        async with session.post(f"{api.url}/session") as reply:
            assert (reply.status, COOKIE in reply.cookies) == (404, False)


async def test_signing_in(serve_api: ServeApi) -> None:
    """The page comes without a token; with it the browser gets a cookie no script can read, which then opens all."""
    api = serve_api(token="secret")
    token = {"Authorization": "Bearer secret"}
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:

        async def status(path: str, method: str = "GET", **headers: str) -> int:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            async with session.request(method, api.url + path, headers=named) as reply:
                return reply.status

        assert [await status(path) for path in ("/", "/static/app.js", "/session")] == [200, 200, 200]
        assert [await status(path) for path in ("/jobs", "/jobs/a/events", "/docs", "/metrics")] == [401] * 4
        assert await status("/session", "POST") == 401
        assert await status("/session", "POST", Authorization="Bearer wrong") == 401
        async with session.post(f"{api.url}/session", headers=token) as reply:
            assert (await reply.json()) == {"token_needed": True, "signed_in": True}
            cookie = reply.cookies[COOKIE]
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
        assert "secret" not in cookie.value
        assert [await status(path) for path in ("/jobs", "/docs", "/metrics")] == [200] * 3
        assert await status("/jobs/a", "DELETE", Origin=api.url) == 404
        assert await status("/jobs/a", "DELETE", Origin="https://evil.example") == 403
        assert await status("/jobs/a", "DELETE") == 403
        assert await status("/session", "DELETE", Origin=api.url) == 204
        assert await status("/jobs") == 401


@pytest.mark.parametrize(("scheme", "secure"), [("http", False), ("https", True)])
async def test_the_cookie_keeps_to_https(serve_api: ServeApi, scheme: str, secure: bool) -> None:  # noqa: FBT001
    """Behind a proxy that speaks HTTPS the browser sends it nowhere else."""
    api = serve_api(token="secret")
    headers = {"Authorization": "Bearer secret", "X-Forwarded-Proto": scheme}
    async with aiohttp.ClientSession() as session, session.post(f"{api.url}/session", headers=headers) as reply:
        assert bool(reply.cookies[COOKIE]["secure"]) == secure
        assert urlsplit(str(reply.url)).scheme == "http"
