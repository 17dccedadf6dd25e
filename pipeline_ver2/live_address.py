"""What a live source is called: which addresses are live, and how they are told without their secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from pipeline_ver2.config_live import Policy

STANDARD_INPUT = "-"
NETWORK_SCHEMES = frozenset({"rtsp", "rtsps", "http", "https"})

_WEBCAM = re.compile(r"/dev/video\d+")


@dataclass(frozen=True, slots=True)
class LiveSource:
    """A source that is followed as it comes.

    `address` is a URL (RTSP, HTTP), a webcam's device, "-" for standard input, or a file that is read at the speed at
    which it plays. `deadline_s` is how long after a slot's last frame its answer is of use, None: always. The run ends
    with the source, after `duration_s`, or at `until`, whichever is first.
    """

    address: str
    policy: Policy = "DROP_OLDEST"
    deadline_s: float | None = None
    duration_s: float | None = None
    until: datetime | None = None

    @property
    def is_paced(self) -> bool:
        """Whether it is a file."""
        return not is_live(self.address)

    @property
    def reconnects(self) -> bool:
        """Whether it is opened again when it was lost."""
        return not self.is_paced and self.address != STANDARD_INPUT

    @property
    def name(self) -> str:
        """The address without user, password and query."""
        return public_name(self.address)


def is_live(address: str) -> bool:
    """Whether an address is live by itself; what is not is a file."""
    return address == STANDARD_INPUT or scheme_of(address) in NETWORK_SCHEMES or device_of(address) is not None


def has_host(address: str) -> bool:
    """Whether an address names a host, or is none that would."""
    if scheme_of(address) not in NETWORK_SCHEMES:
        return True
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # half of an IPv6 address, a port over 65535
        return False


def scheme_of(address: str) -> str:
    """The scheme of a URL, in lower case; empty if it is none."""
    scheme, separator, _ = address.partition("://")
    return scheme.lower() if separator else ""


def device_of(address: str) -> str | None:
    """The device of a webcam, by its path or its number; None for other addresses."""
    if _WEBCAM.fullmatch(address):
        return address
    return f"/dev/video{address}" if address.isascii() and address.isdigit() and not Path(address).exists() else None


def public_name(address: str) -> str:
    """An address without user, password and query, for logs and results."""
    if scheme_of(address) not in NETWORK_SCHEMES:
        return Path(address).name if device_of(address) is None and address != STANDARD_INPUT else address
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
