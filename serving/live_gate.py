"""Which live sources jobs may follow: the hosts and addresses that URLs of videos may have, whatever leads to them."""

from __future__ import annotations

import ipaddress
import socket

from yarl import URL

from pipeline_ver2.config import ServingConfig
from pipeline_ver2.errors import RequestError, SourceRefused, SourceUnreachable
from pipeline_ver2.live_address import NETWORK_SCHEMES
from serving.downloads import check_address, check_place

_MOST_CHARACTERS = 2000


class LiveGate:
    """Says where a live job may go; asked before every connection, in the thread that makes it.

    Args:
        config: What is allowed.
    """

    def __init__(self, config: ServingConfig) -> None:
        self._config = config

    def __call__(self, address: str) -> list[str]:
        """The IP addresses of a URL's host; blocks.

        Raises:
            RequestError: It is no URL.
            SourceRefused: It may not be followed.
            OSError, UnicodeError: Its host is not known.
        """
        url = _parsed(address)
        if url.scheme not in NETWORK_SCHEMES or not url.raw_host:
            said = f"source: {url.scheme or 'a path'} is not followed live, only http, https, rtsp and rtsps are"
            raise SourceRefused(said)
        check_place(url, self._config)
        found = socket.getaddrinfo(url.raw_host, url.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        for each in addresses:
            check_address(ipaddress.ip_address(each.partition("%")[0]), private=self._config.downloads.private)
        return addresses

    def check(self, address: str) -> None:
        """See whether a client's source may be followed; blocks.

        Raises:
            RequestError: It is no URL.
            SourceRefused: It may not be followed.
            SourceUnreachable: Its host is not known.
        """
        try:
            self(address)
        except (OSError, UnicodeError) as error:
            raise SourceUnreachable(f"source: its host is not known ({type(error).__name__})") from error


def _parsed(address: str) -> URL:
    # What the parsers of others drop or stumble over would be another place than the one that was looked at.
    if not address.isascii() or not address.isprintable() or " " in address or "\\" in address:
        raise RequestError("source: no URL: it has other characters than printable ASCII, a space or a backslash")
    if len(address) > _MOST_CHARACTERS:
        raise RequestError(f"source: no URL: over {_MOST_CHARACTERS} characters")
    try:
        url = URL(address)
        _ = url.port
    except ValueError as error:  # which may say the URL with its password
        raise RequestError("source: no URL") from error
    return url
