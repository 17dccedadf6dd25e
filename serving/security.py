"""Who may use the job server: whoever has the token, and without one only programs of this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline_ver2.config import ServingConfig
from pipeline_ver2.errors import ConfigError, ForeignOrigin, Unauthorized, ZroactError
from serving.problems import problem_response
from serving.sessions import COOKIE, Sessions

OPEN_PATHS = frozenset({"/livez", "/readyz"})
"""For orchestrators, which have no token; they tell nothing of jobs."""
PAGE_PATHS = frozenset({"/", "/session"})
STATIC_PATH = "/static/"
"""The page, which asks for the token; it holds nothing of jobs."""

_SAFE_METHODS = frozenset({"GET", "HEAD"})


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(config: ServingConfig) -> None:
    """Refuse to be reachable from elsewhere without a token.

    Raises:
        ConfigError: `serving.host` is not loopback and there is no `serving.token`.
    """
    if config.token is None and not is_loopback(config.host):
        raise ConfigError(f"serving.host: {config.host} can be reached from elsewhere, which needs a serving.token")


class Guard:
    """Middleware that turns away requests without the token, and browsers that act for a foreign page.

    In place of the token a browser may have the cookie of a sign-in, which it sends for whatever page asks; so that
    page must be ours.

    Without a token anything on this machine may ask, and a browser is such a thing: a page of elsewhere could post
    to us, or read us by a name of its own that resolves to loopback. Its Origin or Host gives it away.
    """

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._sessions = None if token is None else Sessions(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            refusal = self._refusal(Request(scope))
            if refusal is not None:
                await problem_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> ZroactError | None:
        if self._sessions is not None:
            return _refusal_by_token(request, self._sessions)
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not is_loopback(_split(f"//{host}").hostname or ""):
            return ForeignOrigin(f"Host: {host[:80]!r} is not a name of this machine's loopback")
        if origin is not None and _split(origin).netloc != host:
            return ForeignOrigin(f"Origin: {origin[:80]!r} is another site")
        return None


def _refusal_by_token(request: Request, sessions: Sessions) -> ZroactError | None:
    path, reads = request.url.path, request.method in _SAFE_METHODS
    if reads and (path in PAGE_PATHS or path.startswith(STATIC_PATH)):
        return None
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and sessions.is_token(given.strip()):
        return None
    if scheme or not sessions.is_valid(request.cookies.get(COOKIE, "")):
        return Unauthorized("a bearer token is needed")
    return None if _is_our_page(request, reads=reads) else ForeignOrigin("another site asks with this browser's cookie")


def _is_our_page(request: Request, *, reads: bool) -> bool:
    """Whether the browser says that a page of this server, or its user by hand, asks."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in {None, "same-origin", "none"}:
        return False
    if origin is not None:
        return _split(origin).netloc == request.headers.get("host", "")
    return reads or site == "same-origin"


def _split(address: str) -> SplitResult:
    """The parts of an address; all empty where it is none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
