"""A daemon as the supervisor sees one: answers what it asks, tells what happens to it, ends as its arguments say."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PATHS = {"/readyz", "/livez", "/v2/models/yowov3", "/v1/models"}


class Handler(BaseHTTPRequestHandler):
    """200 for the paths of both stages, 404 otherwise."""

    def do_GET(self) -> None:
        """Answer with a status only."""
        self.send_response(200 if self.path in PATHS else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the log for what the tests look for."""


def note(folder: Path, line: str) -> None:
    """Append a line to what happened, for the test to read."""
    with (folder / "events").open("a") as events:
        events.write(f"{line}\n")


def main() -> None:
    """Serve until told otherwise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--exit", type=int)
    parser.add_argument("--last-words", default="error: stage1.model_path: no such file")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--mute", action="store_true", help="never listen")
    parser.add_argument("--child", action="store_true", help="leave a process of its own in the group")
    options = parser.parse_args()

    def on_term(*_: object) -> None:
        note(options.folder, "term")
        if not options.deaf:
            os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    if options.child:
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note(options.folder, f"child {sleeper.pid}")
    leaked = [name for name in os.environ if name.startswith("ZROACT_")]
    note(options.folder, f"pid {os.getpid()}")
    note(options.folder, f"leaked {leaked}")
    (options.folder / "seen.json").write_text(options.config.read_text())
    if options.exit is not None:
        sys.stderr.write(f"loading\n{options.last_words}\n\n")
        sys.exit(options.exit)
    if not options.mute:
        server = ThreadingHTTPServer((options.host, options.port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    while sys.stdin.buffer.read(1):
        pass
    note(options.folder, "orphaned")
    os._exit(0)


if __name__ == "__main__":
    main()
