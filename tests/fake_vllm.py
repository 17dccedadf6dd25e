"""Plays vLLM's server for tests: an executable that takes `-m MODULE --port N …` and speaks just enough OpenAI.

`--notes FOLDER` (among the passed-on arguments) is where it writes who it is, one file per start. What a chat's text
says it does: `die` ends the process with status 0, `hang` never answers, `break` answers 500, `zombie` makes every chat
from then on answer 500 while `/health` stays well, `preempt` and `full` change its metrics, `mute` takes them away.
`--chaos SEED` does such things by chance instead. A file `cpu-build` beside it makes it vLLM's CPU build.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

ANSWER = '{"action":"none","description":"Nobody is seen."}'
CHAOS = (("fine", 85), ("die", 2), ("hang", 2), ("break", 3), ("cut", 3), ("nonsense", 2), ("babble", 3))


def wish_of(body: dict[str, Any]) -> str:
    """The texts of a chat."""
    contents = [message["content"] for message in body["messages"]]
    parts = [content if isinstance(content, list) else [{"text": content}] for content in contents]
    return " ".join(part.get("text", "") for content in parts for part in content)


class Handler(BaseHTTPRequestHandler):
    """Health, models and chats."""

    protocol_version = "HTTP/1.1"
    model = "?"
    is_broken = False
    is_mute = False
    chance: random.Random | None = None
    metrics: ClassVar[dict[str, float]] = {
        "vllm:num_preemptions_total": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:iteration_tokens_total_count": 0,
    }

    def do_GET(self) -> None:
        """`/health` has an empty body, as vLLM's."""
        if self.path == "/health":
            self._send(200, b"")
        elif self.path == "/metrics":
            lines = [f'{name}{{model_name="{self.model}"}} {value}\n' for name, value in self.metrics.items()]
            self._send(404 if self.is_mute else 200, "".join(lines).encode())
        elif self.path == "/version":
            self._send(200, b'{"version": "a stand-in"}')
        else:
            self._send(200, json.dumps({"object": "list", "data": [{"id": self.model}]}).encode())

    def do_POST(self) -> None:
        """Answer, or do what the text says."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = wish_of(body) if self.chance is None else self.chance.choices(*zip(*CHAOS, strict=True))[0]
        if "die" in text:
            os._exit(0)
        if "hang" in text:
            threading.Event().wait()
        if "cut" in text:
            self.close_connection = True
            return
        self._change(text)
        if "break" in text or self.is_broken:
            self._send(500, json.dumps({"error": {"message": "it broke", "code": 500}}).encode())
        elif "nonsense" in text:
            self._send(200, b'{"choices": [')
        elif body.get("stream"):
            self._stream()
        else:
            said = "one two" if self.chance is None or "babble" in text else ANSWER
            choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            reply = {"object": "chat.completion", "model": self.model, "choices": [choice]}
            self._send(200, json.dumps(reply).encode())

    def _change(self, text: str) -> None:
        Handler.is_broken = Handler.is_broken or "zombie" in text
        Handler.is_mute = Handler.is_mute or "mute" in text
        self.metrics["vllm:num_preemptions_total"] += "preempt" in text
        self.metrics["vllm:kv_cache_usage_perc"] = 0.99 if "full" in text else 0.5
        self.metrics["vllm:iteration_tokens_total_count"] += not self.is_broken

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

    if arguments[0] == "-c":
        sys.exit(not Path(sys.argv[0]).with_name("cpu-build").exists())

    if "--fail-at-start" in arguments:
        sys.exit("ValueError: no such model\nRuntimeError: the engine could not be started")
    helper = subprocess.Popen(["/bin/sleep", "600"])
    notes = {"arguments": arguments, "pid": os.getpid(), "helper_pid": helper.pid}
    Handler.model = value("--served-model-name")
    server = ThreadingHTTPServer(("127.0.0.1", int(value("--port"))), Handler)
    if "--chaos" in arguments:
        Handler.chance = random.Random(f"{value('--chaos')}, start {len(list(Path(value('--notes')).glob('*.json')))}")
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
