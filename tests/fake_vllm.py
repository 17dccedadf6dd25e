"""Plays vLLM's server for tests: an executable that takes `-m MODULE --port N …` and speaks just enough OpenAI.

`--notes FOLDER` (among the passed-on arguments) is where it writes who it is, one file per start. What a chat's text
says it does: `die` ends the process with status 0, `hang` never answers, `break` answers 500, `zombie` makes every chat
from then on answer 500 while `/health` stays well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Health, models and chats."""

    protocol_version = "HTTP/1.1"
    model = "?"
    is_broken = False

    def do_GET(self) -> None:
        """`/health` has an empty body, as vLLM's."""
        if self.path == "/health":
            self._send(200, b"")
        else:
            self._send(200, json.dumps({"object": "list", "data": [{"id": self.model}]}).encode())

    def do_POST(self) -> None:
        """Answer, or do what the text says."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps(body["messages"])
        if "die" in text:
            os._exit(0)
        if "hang" in text:
            threading.Event().wait()
        Handler.is_broken = Handler.is_broken or "zombie" in text
        if "break" in text or self.is_broken:
            self._send(500, json.dumps({"error": {"message": "it broke", "code": 500}}).encode())
        elif body.get("stream"):
            self._stream()
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": "one two"}, "finish_reason": "stop"}
            self._send(
                200, json.dumps({"object": "chat.completion", "model": self.model, "choices": [choice]}).encode()
            )

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for text in ("one ", "two"):
            chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def main(arguments: list[str]) -> None:
    """Write the notes, start a process of its own as vLLM does, serve."""

    def value(name: str) -> str:
        return arguments[arguments.index(name) + 1]

    if "--fail-at-start" in arguments:
        sys.exit(3)
    helper = subprocess.Popen(["/bin/sleep", "600"])
    notes = {"arguments": arguments, "pid": os.getpid(), "helper_pid": helper.pid}
    Handler.model = value("--served-model-name")
    server = ThreadingHTTPServer(("127.0.0.1", int(value("--port"))), Handler)
    written = Path(value("--notes"), f"{os.getpid()}.part")
    written.write_text(json.dumps(notes))
    written.rename(written.with_suffix(".json"))
    sys.stdout.write("the fake vLLM listens\n")
    sys.stdout.flush()
    server.serve_forever()


def write_executable(path: Path) -> Path:
    """Make this file a program that can stand where `vllm_python` is expected."""
    path.write_text(f"#!{sys.executable}\n{Path(__file__).read_text(encoding='utf-8')}")
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
