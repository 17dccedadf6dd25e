"""Who answers at the address of a stage: a ready stage, one that is starting, nobody, or something else."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import aiohttp

from pipeline_ver2.config import Config, Stage1Config, Stage2Config
from pipeline_ver2.errors import ConfigError

StageName = Literal["stage1", "stage2"]

MODEL = "yowov3"
MODEL_READY_PATH = f"/v2/models/{MODEL}/ready"

_ASK_TIMEOUT_S = 15.0
_ALIVE_TIMEOUT_S = 3.0
_CONNECT_TIMEOUT_S = 3.0

_TITLES: dict[StageName, str] = {"stage1": "Stage 1", "stage2": "Stage 2"}
_OIP_READY_PATH = "/v2/health/ready"
_NOT_HERE = {404, 405}
_READY_PATHS: dict[StageName, tuple[str, ...]] = {
    "stage1": ("/readyz", _OIP_READY_PATH),
    "stage2": ("/readyz", "/health", "/v1/models"),
}
# Many kinds of server have a /readyz; only the right stage has this beside it.
_IDENTITY_PATHS: dict[StageName, str] = {"stage1": f"/v2/models/{MODEL}", "stage2": "/v1/models"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a stage is to be found, and the key of config.json that says so."""

    stage: StageName
    url: str
    host: str
    port: int
    key: str

    @property
    def title(self) -> str:
        """How messages call the stage."""
        return _TITLES[self.stage]

    @property
    def is_local(self) -> bool:
        """Whether a daemon started here would be found there: plain HTTP on a loopback or wildcard address."""
        if urlsplit(self.url).scheme != "http":
            return False
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host == "localhost"
        return address.is_loopback or address.is_unspecified


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found at an address: a ready stage, one that is starting, nobody, or something else."""

    state: Literal["ready", "starting", "absent", "foreign"]
    detail: str = ""


def address_of(config: Config, stage: StageName) -> Address:
    """Where the configuration says a stage is.

    Raises:
        ConfigError: Port 0, or a URL that is none.
    """
    section: Stage1Config | Stage2Config = config.stage1 if stage == "stage1" else config.stage2
    key = f"{stage}.port" if section.url is None else f"{stage}.url"
    try:
        parts = urlsplit(section.base_url)
        port = parts.port if parts.port is not None else {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{key}: {section.base_url!r} is no http URL") from error
    if not parts.hostname or port == 0:
        raise ConfigError(f"{key}: {section.base_url!r} names no host and port that clients could use")
    return Address(stage, section.base_url, parts.hostname, port, key)


async def find_stage(session: aiohttp.ClientSession, address: Address) -> Finding:
    """Ask an address what it is: our own daemon first, then the ways in which stand-ins say that they are ready."""
    try:
        for path in _READY_PATHS[address.stage]:
            status = await _status(session, address.url + path, _ASK_TIMEOUT_S)
            if status in _NOT_HERE or (path == "/readyz" and status == 400):  # so says Triton of any path it lacks
                continue
            if status != 200:
                return Finding("starting", f"GET {path} answers {status}")
            identity = _IDENTITY_PATHS[address.stage]
            if path == "/readyz" and await _status(session, address.url + identity, _ASK_TIMEOUT_S) != 200:
                return Finding("foreign", f"it is ready, but has no {identity}")
            return await _model_state(session, address) if path == _OIP_READY_PATH else Finding("ready")
    except aiohttp.ClientConnectorError as error:
        return Finding("absent", os.strerror(error.errno) if error.errno else str(error.os_error))
    except aiohttp.ConnectionTimeoutError:
        return Finding("absent", f"no connection within {_CONNECT_TIMEOUT_S:g} s")
    except TimeoutError:
        return await _silent(session, address)
    except aiohttp.ClientError as error:
        return Finding("foreign", f"it does not speak HTTP ({type(error).__name__})")
    return Finding("foreign", f"it is a web server without {' or '.join(_READY_PATHS[address.stage])}")


async def _model_state(session: aiohttp.ClientSession, address: Address) -> Finding:
    """A server of the Open Inference Protocol may be ready before its model is; not every one tells."""
    status = await _status(session, address.url + MODEL_READY_PATH, _ASK_TIMEOUT_S)
    if status == 200 or status in _NOT_HERE:
        return Finding("ready")
    return Finding(
        "starting", f"the server is ready, its model {MODEL} is not: GET {MODEL_READY_PATH} answers {status}"
    )


async def _status(session: aiohttp.ClientSession, url: str, timeout_s: float) -> int:
    limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
    async with session.get(url, timeout=limits, allow_redirects=False) as reply:
        return reply.status


async def _silent(session: aiohttp.ClientSession, address: Address) -> Finding:
    """A readiness answer may take long while an engine works; being alive may not."""
    try:
        status = await _status(session, address.url + "/livez", _ALIVE_TIMEOUT_S)
    except (aiohttp.ClientError, TimeoutError):
        return Finding("foreign", "it takes connections and answers nothing")
    return Finding("starting", f"no answer on readiness in {_ASK_TIMEOUT_S:g} s, GET /livez answers {status}")
