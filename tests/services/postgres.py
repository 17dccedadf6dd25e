"""A PostgreSQL server of a test's own, where one is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.job_server import PATIENCE_S


def owner() -> str | None:
    """The user a database server can run as: it refuses root. None: there is nobody."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    return next((user.pw_name for user in pwd.getpwall() if user.pw_name == "postgres"), None)


class Postgres:
    """A server in a folder, which belongs to the user it runs as."""

    def __init__(self, folder: Path, user: str, port: int) -> None:
        self.url = f"postgresql://zroact@127.0.0.1:{port}/postgres"
        self._folder, self._user, self._port = folder, user, port
        self._data = folder / "data"
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "zroact", "--no-sync")

    def start(self) -> None:
        """Start it, again if it was killed: what it has left behind may need a moment to go."""
        place, log = ["-D", str(self._data)], self._folder / "log"
        options = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._run("pg_ctl", *place, "-o", options, "-w", "-l", str(log), "start")
            except subprocess.CalledProcessError:
                assert time.monotonic() < give_up_at, log.read_text()

    def kill(self) -> None:
        """kill -9; its children see it and end."""
        os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    def stop(self) -> None:
        """Stop it without waiting for its clients."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def _run(self, *command: str) -> None:
        subprocess.run(
            command, user=self._user, cwd=self._folder, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S
        )


@contextmanager
def postgres(port: int) -> Iterator[Postgres]:
    """A fresh server until the block ends; skips the test where none is installed."""
    user, missing = owner(), [name for name in ("initdb", "postgres", "pg_ctl") if shutil.which(name) is None]
    if user is None or missing:
        pytest.skip("PostgreSQL is not installed here")
    folder = Path(tempfile.mkdtemp(prefix="test-postgres-"))
    shutil.chown(folder, user)
    try:
        server = Postgres(folder, user, port)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
