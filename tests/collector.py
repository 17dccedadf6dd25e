"""A tiny OpenTelemetry collector: OTLP over HTTP on port 0, keeping what it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What came: spans, the paths they were posted to, and who sent them."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        """Keep a request."""
        self.paths.append(path)
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append({pair.key: pair.value.string_value for pair in each.resource.attributes})
            self.spans += [span for scope in each.scope_spans for span in scope.spans]


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    """Collect until the block ends, answering with this status."""
    collected = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collected.take(self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collected.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
