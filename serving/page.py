"""The web page: its files, what they may do in a browser, and signing in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response, status
from pydantic import BaseModel

from pipeline_ver2.errors import NothingThere
from serving.problems import documented
from serving.security import STATIC_PATH
from serving.sessions import COOKIE, LIFETIME_S, Sessions

HEADERS = {
    # Only what this server itself gives, no script or style inside the page, no text taken for markup.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

_FOLDER = Path(__file__).with_name("static")
_INDEX = "index.html"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class SessionReply(BaseModel):
    """Whether a token is needed here, and whether this browser has signed in with it."""

    token_needed: bool
    signed_in: bool


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> _File:
        content = path.read_bytes()
        return cls(content, _KINDS[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')


class Page:
    """The routes of the page.

    Args:
        token: What clients of the API need; None for nothing.
    """

    def __init__(self, token: str | None) -> None:
        self._sessions = None if token is None else Sessions(token)
        self._files = {path.name: _File.read(path) for path in _FOLDER.iterdir() if path.suffix in _KINDS}

    def routes(self) -> APIRouter:
        """The router; the page itself is no part of the API's documentation, signing in is."""
        router = APIRouter(tags=["page"])
        router.add_api_route("/", self.index, methods=["GET", "HEAD"], include_in_schema=False)
        router.add_api_route(f"{STATIC_PATH}{{name}}", self.file, methods=["GET", "HEAD"], include_in_schema=False)
        router.add_api_route("/session", self.session, methods=["GET"])
        router.add_api_route("/session", self.sign_in, methods=["POST"], responses=documented(404))
        router.add_api_route("/session", self.sign_out, methods=["DELETE"], status_code=status.HTTP_204_NO_CONTENT)
        return router

    async def index(self, request: Request) -> Response:
        """The page."""
        return self._reply(request, _INDEX)

    async def file(self, request: Request, name: str) -> Response:
        """One of its files."""
        return self._reply(request, name)

    async def session(self, request: Request) -> SessionReply:
        """Whether to sign in."""
        if self._sessions is None:
            return SessionReply(token_needed=False, signed_in=False)
        return SessionReply(token_needed=True, signed_in=self._sessions.is_valid(request.cookies.get(COOKIE, "")))

    async def sign_in(self, request: Request, response: Response) -> SessionReply:
        """Give this browser, which has sent the token, a cookie that stands for it."""
        if self._sessions is None:
            raise NothingThere("this server has no token, so nobody signs in")
        secure = request.url.scheme == "https"
        response.set_cookie(
            COOKIE, self._sessions.issue(), max_age=LIFETIME_S, httponly=True, samesite="strict", secure=secure
        )
        return SessionReply(token_needed=True, signed_in=True)

    async def sign_out(self, response: Response) -> None:
        """Take the cookie back."""
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def _reply(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            raise NothingThere(f"the page has no file {name[:80]!r}")
        headers = {**HEADERS, "ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)
