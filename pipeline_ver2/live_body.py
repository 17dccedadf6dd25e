"""The bytes of a live source that we read ourselves, so that nothing keeps a read from ending: HTTP, standard input."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from pipeline_ver2.errors import SourceLost
from pipeline_ver2.live_address import public_name

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_LOOK_S = 0.2
_PLAYLIST = b"#EXTM3U"

Allow = Callable[[str], Sequence[str] | None]
"""Is asked about each URL before it is visited, those of redirects too; raises if it may not be, and gives the IP
addresses that may be connected to, None for those the system finds."""


class Body(Protocol):
    """What the demuxer reads from."""

    def read(self, size: int) -> bytes:
        """The next bytes, at most so many; none at the end."""

    def abort(self) -> None:
        """Have a read that waits end; from any thread."""

    def close(self) -> None:
        """Let go of it."""


class HttpBody:
    """The body of a GET.

    Args:
        url: Where it is; user and password in it are sent as basic authentication.
        open_timeout_s: For connecting and the head of the reply.
        read_timeout_s: For the next bytes of the body.
        allow: Says where we may go.
        part: The bytes that are wanted, as the header `Range` has them; None: all.

    Raises:
        SourceLost: The reply is no success, or the redirects do not end.
        OSError, http.client.HTTPException: The server cannot be reached or breaks the protocol.
    """

    def __init__(
        self,
        url: str,
        *,
        open_timeout_s: float,
        read_timeout_s: float,
        allow: Allow | None = None,
        part: str | None = None,
    ) -> None:
        self._expected = 200 if part is None else 206
        for _ in range(_MOST_REDIRECTS + 1):
            addresses = None if allow is None else allow(url)
            self._connection = _connect(urlsplit(url), open_timeout_s, addresses)
            self._socket: socket.socket = self._connection.sock
            try:
                self._response = _ask(self._connection, urlsplit(url), part)
                where = self._response.headers.get("Location")
                if self._response.status not in _REDIRECTS or where is None:
                    self._check(url)
                    break
            except BaseException:
                self.close()
                raise
            self.close()
            url = urljoin(url, where)
        else:
            raise SourceLost(f"{public_name(url)}: more than {_MOST_REDIRECTS} redirects")
        self.url = url
        """Where the redirects led to."""
        self._socket.settimeout(read_timeout_s)
        self._ahead = b""
        self._aborted = False

    def _check(self, url: str) -> None:
        if self._response.status != self._expected:
            raise SourceLost(f"{public_name(url)}: HTTP {self._response.status} {self._response.reason}")

    def is_playlist(self) -> bool:
        """Whether the body is an HLS playlist."""
        while len(self._ahead) < len(_PLAYLIST) and (more := self._response.read1(len(_PLAYLIST) - len(self._ahead))):
            self._ahead += more
        return self._ahead == _PLAYLIST

    def read(self, size: int) -> bytes:
        """The next bytes, at most so many; none at the end."""
        if self._ahead:
            ahead, self._ahead = self._ahead[:size], self._ahead[size:]
            return ahead
        try:
            return self._response.read1(size)
        except http.client.IncompleteRead:
            if self._aborted:
                return b""
            raise

    def abort(self) -> None:
        """Have a read that waits end; from any thread."""
        self._aborted = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def is_closed(self) -> bool:
        """Whether it was let go of."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Let go of the connection."""
        if (response := getattr(self, "_response", None)) is not None:
            response.close()
        self._connection.close()
        self._socket.close()


class InputBody:
    """A pipe that somebody writes into, such as standard input. Silence is no end; only its end is."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._stopped = False

    def read(self, size: int) -> bytes:
        """The next bytes, at most so many; none at the end."""
        while not self._stopped:
            ready, _, _ = select.select([self._descriptor], [], [], _LOOK_S)
            if ready:
                return os.read(self._descriptor, size)
        return b""

    def abort(self) -> None:
        """Have a read that waits end; from any thread."""
        self._stopped = True

    def close(self) -> None:
        """Nothing: the pipe is not ours."""


def _connect(url: SplitResult, timeout_s: float, addresses: Sequence[str] | None) -> http.client.HTTPConnection:
    if url.scheme.lower() not in {"http", "https"} or url.hostname is None:
        raise SourceLost(f"{public_name(url.geturl())}: neither http nor https")
    secure = url.scheme.lower() == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection: http.client.HTTPConnection = kind(url.hostname, url.port, timeout=timeout_s)
    if addresses is None:
        connection.connect()
    else:
        connection.sock = _reach(addresses, connection.port, timeout_s)
        if secure:
            connection.sock = _secured(connection.sock, url.hostname)
    return connection


def _reach(addresses: Sequence[str], port: int, timeout_s: float) -> socket.socket:
    """A connection to the first address where somebody listens."""
    lost: OSError | None = None
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout_s)
        except OSError as error:
            lost = error
    raise lost or SourceLost("no address to connect to")


def _secured(plain: socket.socket, host: str) -> ssl.SSLSocket:
    try:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _ask(connection: http.client.HTTPConnection, url: SplitResult, part: str | None) -> http.client.HTTPResponse:
    headers = {"Accept": "*/*", "User-Agent": "zroact"}
    if part is not None:
        headers["Range"] = part
    if url.username is not None:
        said = f"{unquote(url.username)}:{unquote(url.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(said.encode()).decode()}"
    connection.request("GET", (url.path or "/") + (f"?{url.query}" if url.query else ""), headers=headers)
    return connection.getresponse()
