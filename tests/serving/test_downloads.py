"""Videos fetched from URLs: what is allowed, what comes, and that nothing is left."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.config import ServingConfig, load_config
from pipeline_ver2.errors import (
    BodyTooLarge,
    ConfigError,
    RequestError,
    SourceRefused,
    SourceUnreachable,
    StorageFull,
    ZroactError,
)
from serving import downloads, uploads
from serving.downloads import check_address, downloaded, is_url
from serving.uploads import Upload
from tests.film_site import FILM, Site, film_site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """The site."""
    async with film_site() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where files are written; empty again after the test, whatever came of it."""
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def settings(*hosts: str, private: bool = True, max_upload_mb: float = 1, **bounds: Any) -> ServingConfig:  # noqa: ANN401
    """A configuration that allows these hosts."""
    return ServingConfig.model_validate(
        {"allowed_hosts": hosts, "max_upload_mb": max_upload_mb, "downloads": {"private": private, **bounds}}
    )


async def fetch(url: str, folder: Path, config: ServingConfig) -> tuple[Upload, bytes]:
    """Download; the upload and what was in its file."""
    async with asyncio.timeout(60), downloaded(url, folder, config) as upload:
        return upload, upload.path.read_bytes()


async def test_a_file_comes_whole(site: Site, folder: Path) -> None:
    """Named by the last part of its path; also through redirects of every kind, absolute and relative."""
    config = settings(site.place)
    upload, content = await fetch(f"{site.url}/film.mp4#there", folder, config)
    assert (upload.name, upload.size, content) == ("film.mp4", len(FILM), FILM)
    for status in (301, 302, 303, 307, 308):
        path = f"/lead?status={status}&to=/lead?to={site.url}/film.mp4"
        assert (await fetch(site.url + path, folder, config))[1] == FILM
    assert (await fetch(f"{site.url}/stream?pieces=3", folder, config))[1] == FILM * 3


@pytest.mark.fault("O8")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/film.mp4",
        "file:///etc/passwd",
        "data:video/mp4;base64,AAAA",
        "rtsp://127.0.0.1/live",
        "http:film.mp4",
        "http:///film.mp4",
        "http://user@{place}/film.mp4",
        "http://:word@{place}/film.mp4",
        "http://localhost:{port}/film.mp4",
        "http://127.0.0.1/film.mp4",
        "https://{place}.example/film.mp4",
        "http://127.1:{port}/film.mp4",
        "http://2130706433:{port}/film.mp4",
        "http://[::ffff:127.0.0.1]:{port}/film.mp4",
    ],
)
async def test_urls_that_are_not_allowed(site: Site, folder: Path, url: str) -> None:
    """Scheme, host, port, user: each must fit, and nothing is asked."""
    port = site.place.rpartition(":")[2]
    with pytest.raises((SourceRefused, RequestError)):
        await fetch(url.format(place=site.place, port=port), folder, settings(site.place))
    with pytest.raises(SourceRefused, match=r"serving\.allowed_hosts"):
        await fetch(f"{site.url}/film.mp4", folder, settings())
    assert site.asked == []


@pytest.mark.fault("O8")
@pytest.mark.parametrize(
    "to", ["http://localhost:{port}/film.mp4", "file:///etc/passwd", "//10.0.0.1/x", "http://u:p@{place}/film.mp4"]
)
async def test_every_hop_is_checked(site: Site, folder: Path, to: str) -> None:
    """An allowed host leads nowhere else."""
    to = to.format(place=site.place, port=site.place.rpartition(":")[2])
    with pytest.raises(SourceRefused):
        await fetch(f"{site.url}/lead?to={to}", folder, settings(site.place))
    assert len(site.asked) == 1


@pytest.mark.fault("O8")
async def test_redirects_end(site: Site, folder: Path) -> None:
    """Only so many of them."""
    with pytest.raises(SourceRefused, match="more than 3 times"):
        await fetch(f"{site.url}/lead?to=", folder, settings(site.place, redirects=3))
    assert len(site.asked) == 4


@pytest.mark.fault("O8")
async def test_a_name_of_a_private_address(site: Site, folder: Path) -> None:
    """An allowed name that leads to this machine is refused, unless that is allowed; so is the address itself."""
    port = site.place.rpartition(":")[2]
    named = f"http://localhost:{port}/film.mp4"
    for url, host in ((named, f"localhost:{port}"), (f"{site.url}/film.mp4", site.place)):
        with pytest.raises(SourceRefused, match="not a public address"):
            await fetch(url, folder, settings(host, private=False))
    assert site.asked == []
    assert (await fetch(named, folder, settings(f"localhost:{port}")))[1] == FILM
    assert site.hosts == [f"localhost:{port}"]


@pytest.mark.fault("O8")
async def test_a_name_is_looked_up_once(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is connected to is the very address that was checked: a second answer of the name server is not heard."""
    answers = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    port = int(site.place.rpartition(":")[2])
    looked_up: list[str] = []

    async def look_up(
        _loop: object, host: str, port: int, **_how: object
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        looked_up.append(host)
        address = host if host.startswith("127.") else answers[len(looked_up) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    checked: list[str] = []
    monkeypatch.setattr("asyncio.base_events.BaseEventLoop.getaddrinfo", look_up)
    monkeypatch.setattr(downloads, "check_address", lambda address, **_: checked.append(str(address)))
    assert (await fetch(f"http://films.example:{port}/film.mp4", folder, settings(f"*.example:{port}")))[1] == FILM
    assert (looked_up, checked) == (["films.example"], ["127.0.0.1"])


@pytest.mark.fault("O8")
@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("64:ff9b::5db8:d822", True),
        *((private, False) for private in ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254")),
        *((private, False) for private in ("100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "198.18.0.1")),
        *((private, False) for private in ("::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1")),
        *((private, False) for private in ("64:ff9b::a00:1", "2002:a00:1::", "2001:db8::1")),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Loopback, private, link-local and the like are not, in whatever form they are written."""
    try:
        check_address(ipaddress.ip_address(address), private=False)
    except SourceRefused:
        assert not public
    else:
        assert public


@pytest.mark.parametrize(
    ("entry", "url", "allowed"),
    [
        ("films.example", "http://films.example/a", True),
        ("films.example", "https://FILMS.example./a", True),
        ("films.example", "https://films.example:443/a", True),
        ("films.example", "http://films.example:443/a", False),
        ("films.example", "http://old.films.example/a", False),
        ("films.example", "http://films.example.evil/a", False),
        ("films.example:8080", "http://films.example:8080/a", True),
        ("films.example:8080", "http://films.example/a", False),
        ("*.films.example", "http://old.films.example/a", True),
        ("*.films.example", "http://films.example/a", False),
        ("*.films.example", "http://evilfilms.example/a", False),
        ("[::1]", "http://[::1]/a", True),
    ],
)
async def test_hosts(folder: Path, entry: str, url: str, allowed: bool) -> None:  # noqa: FBT001
    """An entry covers its own host, or those below it, on the usual ports or on its own."""
    with pytest.raises(ZroactError) as caught:
        await fetch(url, folder, settings(entry, redirects=0, seconds=5))
    assert isinstance(caught.value, SourceUnreachable) is allowed


@pytest.mark.parametrize(
    "entry",
    ["", "*", "http://films.example", "films.example/a", "films.example:99999", "[::1", "[1.2:3]", "a b", "u@a"],
)
def test_entries_that_are_no_hosts(entry: str) -> None:
    """Stop the start, with the key."""
    with pytest.raises(ConfigError, match=r"serving\.allowed_hosts"):
        load_config(None, {"serving.allowed_hosts": [entry]}, environ={})


@pytest.mark.fault("O7")
@pytest.mark.parametrize("path", ["/film.mp4", "/stream"])
async def test_larger_than_the_limit(site: Site, folder: Path, path: str) -> None:
    """Seen by what is announced, or while it comes."""
    with pytest.raises(BodyTooLarge, match=r"serving\.max_upload_mb"):
        await fetch(site.url + path, folder, settings(site.place, max_upload_mb=0.001))


@pytest.mark.fault("O7")
@pytest.mark.parametrize("path", ["/cut", "/missing"])
async def test_no_whole_file(site: Site, folder: Path, path: str) -> None:
    """A connection that breaks and a page that is not there."""
    with pytest.raises(SourceUnreachable):
        await fetch(site.url + path, folder, settings(site.place))


async def test_nobody_is_there(folder: Path, free_port: int) -> None:
    """The reason is told."""
    with pytest.raises(SourceUnreachable, match=r"127\.0\.0\.1"):
        await fetch(f"http://127.0.0.1:{free_port}/film.mp4", folder, settings(f"127.0.0.1:{free_port}"))


@pytest.mark.fault("O7")
async def test_a_download_that_takes_too_long(site: Site, folder: Path) -> None:
    """Its time is bounded as a whole; the connection is let go of."""
    with pytest.raises(SourceUnreachable, match=r"serving\.downloads\.seconds"):
        await fetch(f"{site.url}/stream?pause=0.05", folder, settings(site.place, seconds=0.2))
    async with asyncio.timeout(30):
        await site.gone.wait()


@pytest.mark.fault("O9")
async def test_a_cancelled_download(site: Site, folder: Path) -> None:
    """The file goes, the connection too."""
    task = asyncio.create_task(fetch(f"{site.url}/stream?pause=0.05", folder, settings(site.place)))
    async with asyncio.timeout(30):
        while not any(path.stat().st_size for path in folder.iterdir()):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        await site.gone.wait()
    assert task.cancelled()


@pytest.mark.fault("O7")
async def test_no_room(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before anything is written."""
    monkeypatch.setattr(uploads, "MIN_FREE_BYTES", 10**18)
    with pytest.raises(StorageFull):
        await fetch(f"{site.url}/film.mp4", folder, settings(site.place))


@pytest.mark.parametrize(
    ("source", "url"),
    [("/media/a.mp4", False), ("a.mp4", False), ("", False), ("HTTPS://a", True), ("file:/a", True), ("a:b", True)],
)
def test_what_is_a_url(source: str, url: bool) -> None:  # noqa: FBT001
    """Whatever begins with a scheme."""
    assert is_url(source) is url
