"""Real servers for tests: an application on port 0 in a thread, or a daemon as a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import uvicorn
from fastapi import FastAPI

from serving.workers.bulk_http import BulkProtocol

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Spawned:
    """A daemon's process, its address, and the file its log goes to."""

    process: subprocess.Popen[bytes]
    url: str
    log_file: Path

    def log(self) -> str:
        """What it has logged."""
        return self.log_file.read_text(encoding="utf-8")


@contextmanager
def served(app: FastAPI, *, until_ready: bool = True) -> Iterator[str]:
    """Serve an application in a thread; gives its base URL, with `until_ready` as soon as `/readyz` agrees."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # from here on clients wait for the server instead of being refused
        as_daemons: dict[str, Any] = {"lifespan": "on", "loop": "asyncio", "http": BulkProtocol, "ws": "none"}
        server = uvicorn.Server(uvicorn.Config(app, **as_daemons, log_config=None, timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = "http://127.0.0.1:{1}".format(*listener.getsockname())
        try:
            if until_ready:
                wait_ready(url)
            yield url
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


@contextmanager
def spawned(arguments: Sequence[str], folder: Path, *, stdin: IO[bytes] | int | None = None) -> Iterator[Spawned]:
    """Run `python …` of a daemon in a folder until the block ends; gives its process and address once it listens."""
    log_file = folder / "daemon.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, stdin=stdin, stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log_file.read_text(encoding="utf-8")
        yield Spawned(process, json.loads(line)["url"], log_file)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def wait_ready(url: str) -> None:
    """Ask `/readyz` until it agrees."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url + "/readyz", timeout=PATIENCE_S):  # noqa: S310 - our own address
                return
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 503:
                    raise
        assert time.monotonic() < give_up_at, f"{url} did not become ready"
        threading.Event().wait(0.02)
