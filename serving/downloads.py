"""Fetches videos that jobs name by a URL: from hosts that are allowed, from public addresses, and only so much."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from pipeline_ver2.config import ServingConfig
from pipeline_ver2.errors import RequestError, SourceRefused, SourceUnreachable, ZroactError
from serving.uploads import IDLE_S, MEGABYTE, PartFile, Upload, check_room, part_file, shown_name, too_large

CONNECT_S = 10.0

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PIECE_BYTES = 1024 * 1024
_RTSP_PORTS = {"rtsp": 554, "rtsps": 322}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "zroact-stage2"}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_url(source: str) -> bool:
    """Whether a source is a URL of any kind rather than a path."""
    return _SCHEME.match(source) is not None


@asynccontextmanager
async def downloaded(source: str, folder: Path, config: ServingConfig) -> AsyncIterator[Upload]:
    """A video from elsewhere; its file is gone after the block unless it was moved.

    Args:
        source: Its URL.
        folder: Where the file is written; on the file system of its destination.
        config: What is allowed.

    Raises:
        SourceRefused: The URL, one it leads on to, or an address behind it is not allowed.
        SourceUnreachable: Nothing comes, or not all of it, or not in time.
        BodyTooLarge: The video is over the limit.
        StorageFull: The file does not fit.
    """
    with part_file(folder) as file:
        bound_s = config.downloads.seconds
        try:
            async with asyncio.timeout(bound_s):
                await _fetch(source, file, config)
        except TimeoutError as error:
            raise SourceUnreachable(f"source: took longer than {bound_s:g} s (serving.downloads.seconds)") from error
        yield file.upload(shown_name(URL(source).name))


async def _fetch(source: str, file: PartFile, config: ServingConfig) -> None:
    url = _parsed(source)
    connector = aiohttp.TCPConnector(
        resolver=_Resolver(private=config.downloads.private), use_dns_cache=False, force_close=True
    )
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=IDLE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        headers=_HEADERS,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        for _ in range(config.downloads.redirects + 1):
            _check(url, config)
            followed = await _request(session, url, file, int(config.max_upload_mb * MEGABYTE))
            if followed is None:
                return
            url = followed
    raise SourceRefused(f"source: leads on more than {config.downloads.redirects} times (serving.downloads.redirects)")


async def _request(session: aiohttp.ClientSession, url: URL, file: PartFile, max_bytes: int) -> URL | None:
    """Store what a URL gives; or where it leads on to."""
    try:
        async with session.get(url, allow_redirects=False) as reply:
            if reply.status in _REDIRECTS and "Location" in reply.headers:
                return _parsed(reply.headers["Location"], url)
            if reply.status != 200:
                raise SourceUnreachable(f"source: {url.host} answered {reply.status}")
            await _store(reply, file, max_bytes)
            return None
    except ZroactError:
        raise
    except aiohttp.ServerTimeoutError as error:
        raise SourceUnreachable(f"source: {url.host} keeps silent") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise SourceUnreachable(f"source: {url.host}: {str(error) or type(error).__name__}"[:300]) from error


async def _store(reply: aiohttp.ClientResponse, file: PartFile, max_bytes: int) -> None:
    announced = reply.content_length or 0
    if announced > max_bytes:
        raise too_large(max_bytes)
    check_room(file.path.parent, announced)
    async for piece in reply.content.iter_chunked(_PIECE_BYTES):
        if file.size + len(piece) > max_bytes:
            raise too_large(max_bytes)
        await file.write(piece)


def _parsed(text: str, base: URL | None = None) -> URL:
    try:
        url = URL(text) if base is None else base.join(URL(text))
        _ = url.port
    except ValueError as error:
        raise RequestError(f"source: no URL: {error}") from error
    return url.with_fragment(None)


def _check(url: URL, config: ServingConfig) -> None:
    """See whether a URL may be asked.

    Raises:
        SourceRefused: It may not.
    """
    if url.scheme not in {"http", "https"} or not url.raw_host:
        raise SourceRefused(f"source: {url.scheme or 'a URL'} is not fetched, only http and https are")
    if url.user is not None or url.password is not None:
        raise SourceRefused("source: a URL with a user or a password is not fetched")
    check_place(url, config)


def check_place(url: URL, config: ServingConfig) -> None:
    """See whether a URL's host and port are allowed, and its address where it is written out.

    Raises:
        SourceRefused: They are not.
    """
    if not any(_permits(entry, url) for entry in config.allowed_hosts):
        raise SourceRefused(f"source: {_place(url)} is not one of the hosts in serving.allowed_hosts")
    _check_literal(url.raw_host or "", private=config.downloads.private)


def _place(url: URL) -> str:
    return f"{url.raw_host}" if url.is_default_port() else f"{url.raw_host}:{url.port}"


def _permits(entry: str, url: URL) -> bool:
    """Whether an entry of `serving.allowed_hosts` covers a URL's host and port."""
    named = URL(f"//{entry.removeprefix('*.')}")
    host, wanted = (url.raw_host or "").rstrip("."), (named.raw_host or "").rstrip(".")
    usual = _RTSP_PORTS.get(url.scheme)
    port = url.port or usual
    if not (url.is_default_port() or port == usual if named.explicit_port is None else port == named.explicit_port):
        return False
    return host.endswith(f".{wanted}") if entry.startswith("*.") else host == wanted


def _check_literal(host: str, *, private: bool) -> None:
    """No resolver sees an address that is written out, nor what the system would take for one, such as `127.1`."""
    bare = host.partition("%")[0]
    try:
        address = ipaddress.ip_address(bare)
    except ValueError as error:
        if ":" in host or host.replace(".", "").isdigit():
            raise SourceRefused(f"source: {host} is no address") from error
        return
    check_address(address, private=private)


def check_address(address: Address, *, private: bool) -> None:
    """See whether an address may be connected to.

    Raises:
        SourceRefused: It belongs to this machine or a private network, which only `private` allows, or to no host.
    """
    inner = _inner(address)
    if inner.is_multicast or inner.is_unspecified or not (private or inner.is_global):
        raise SourceRefused(f"source: {address} is not a public address (serving.downloads.private)")


def _inner(address: Address) -> Address:
    """The IPv4 address an IPv6 one leads to, if it is of such a kind."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


class _Resolver(AbstractResolver):
    """Looks a host up and checks what it gives; the very addresses it returns are connected to."""

    def __init__(self, *, private: bool) -> None:
        self._private = private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """All addresses of a host; refused as a whole if one of them may not be connected to."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        places = [(str(place[0]), kind, proto) for kind, _, proto, _, place in found]
        for text, _, _ in places:
            check_address(ipaddress.ip_address(text.partition("%")[0]), private=self._private)
        return _results(host, port, places)

    async def close(self) -> None:
        """There is nothing to let go of."""


def _results(host: str, port: int, places: Sequence[tuple[str, int, int]]) -> list[ResolveResult]:
    return [
        ResolveResult(hostname=host, host=text, port=port, family=kind, proto=proto, flags=socket.AI_NUMERICHOST)
        for text, kind, proto in places
    ]
