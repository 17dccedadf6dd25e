"""The life of a daemon's process: command line, logging, listening, draining, and an end that always comes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI

from pipeline_ver2.config import Config, load_config, parse_value
from pipeline_ver2.errors import ConfigError, ZroactError
from serving.workers.bulk_http import BulkProtocol

logger = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"
KEEP_ALIVE_S = 75  # longer than any client of ours keeps a connection, so that the client closes first
DRAIN_S = 10
RELEASE_S = 5.0  # after the drain: for the lifespan to release what the daemon owns
EXIT_OK, EXIT_FATAL, EXIT_USAGE = 0, 1, 2

Stage = Literal["stage1", "stage2"]


def daemon_main(stage: Stage, build: Callable[[Config], FastAPI], argv: Sequence[str] | None = None) -> int:
    """Run a daemon from its command line until it is told to stop.

    Args:
        stage: The section of the configuration with the daemon's host and port.
        build: Makes the application; raises `ConfigError` for what can be seen at once.
        argv: Arguments; None takes the process's.

    Returns:
        Exit code: 0 stopped when told, 1 cannot do its work, 2 usage or configuration.
    """
    arguments = _parser(stage).parse_args(argv)
    set_up_logging()
    try:
        config = load_config(arguments.config, _overrides(stage, arguments))
        where = config.stage1 if stage == "stage1" else config.stage2
        return run_daemon(
            build(config), stage=stage, host=where.host, port=where.port, watch_stdin=arguments.watch_stdin
        )
    except ConfigError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message is for the user, a traceback would hide it
        return EXIT_USAGE


def run_daemon(
    app: FastAPI, *, stage: Stage, host: str, port: int, watch_stdin: bool = False, drain_s: int = DRAIN_S
) -> int:
    """Serve until SIGTERM, SIGINT, the parent's end (`watch_stdin`) or `give_up`; then drain and return.

    One line of JSON on standard output says the address once it listens (port 0 takes any free port). Whatever
    happens while stopping, the process ends at most `drain_s + RELEASE_S` seconds after it was told to.

    Returns:
        Exit code, as `daemon_main`.

    Raises:
        ConfigError: The address cannot be listened on; the message names the key.
    """
    with listen(stage, host, port) as listener:
        server = _DaemonServer(app, stage, drain_s)
        if watch_stdin:
            threading.Thread(target=_watch_stdin, args=(server,), name="watch-stdin", daemon=True).start()
        with _signals_to(server):
            server.run(sockets=[listener])
    logger.info("%s has stopped", stage)
    return server.exit_code


def set_up_logging() -> None:
    """Log to standard error in the documented form."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its life's story; ours says it in a line each


class _DaemonServer(uvicorn.Server):
    """uvicorn's server, with an announced address, an exit code, and an end that always comes."""

    def __init__(self, app: FastAPI, stage: Stage, drain_s: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="on",
                # Whatever else is installed: uvloop takes three times as long for bodies of megabytes.
                loop="asyncio",
                http=BulkProtocol,
                ws="none",
                log_config=None,
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=drain_s,
            )
        )
        self.exit_code = EXIT_OK
        self._stage = stage
        self._last_moment_s = drain_s + RELEASE_S
        self._ending = threading.Lock()
        app.state.on_fatal.append(self.give_up)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then announce the address."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            line: dict[str, Any] = {"event": "listening", "daemon": self._stage, "url": url, "pid": os.getpid()}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            logger.info("%s listens at %s", self._stage, url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On a signal: stop, and see to it that this happens in time. A second SIGINT skips the drain."""
        super().handle_exit(sig, frame)
        self.end_soon()

    def give_up(self, error: ZroactError) -> None:
        """Stop because the daemon can never do its work."""
        logger.error("%s cannot work: %s", self._stage, error)
        self.exit_code = EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FATAL
        self.end_soon()

    def end_soon(self) -> None:
        """Stop; kill the process if it has not ended by itself in time. Callable from any thread."""
        self.should_exit = True
        if self._ending.acquire(blocking=False):
            timer = threading.Timer(self._last_moment_s, self._end_now)
            timer.daemon = True
            timer.start()

    def _end_now(self) -> None:
        logger.error("%s did not end within %g s: ending it hard", self._stage, self._last_moment_s)
        os._exit(EXIT_FATAL)


def _watch_stdin(server: _DaemonServer) -> None:
    """Stop the daemon when standard input ends: the parent holds the other end, and even kill -9 closes it."""
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    logger.warning("the parent is gone: stopping")
    server.end_soon()


@contextlib.contextmanager
def _signals_to(server: _DaemonServer) -> Iterator[None]:
    """Our handlers below uvicorn's: it raises the caught signals again at the end, which must not kill us then."""
    handled = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, server.handle_exit) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listen(key: str, host: str, port: int) -> socket.socket:
    """A listening socket; `key` is the section of the configuration that messages name.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    # asyncio switches Nagle's delay off only where the protocol is named; with it, each reply waits 40 ms for an ACK.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise ConfigError(f"{key}.port: {port} on {host} is already in use") from error
        raise ConfigError(f"{key}.host: cannot listen on {host} port {port}: {error}") from error
    return listener


def _parser(stage: Stage) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"zroact {stage}", description=f"The {stage} daemon.", allow_abbrev=False, exit_on_error=True
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file (default: as everywhere)")
    parser.add_argument("--host", help=f"address to listen on, instead of {stage}.host")
    parser.add_argument("--port", type=int, help=f"port to listen on, instead of {stage}.port; 0 takes a free one")
    parser.add_argument("--watch-stdin", action="store_true", help="stop when standard input ends")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a key of the configuration",
    )
    return parser


def _overrides(stage: Stage, arguments: argparse.Namespace) -> dict[str, object]:
    overrides: dict[str, object] = {f"{stage}.host": arguments.host, f"{stage}.port": arguments.port}
    for setting in arguments.settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {setting}: expected KEY=VALUE")
        overrides[key] = parse_value(value)
    return overrides
