"""Traces of jobs for an OpenTelemetry collector, where one is configured; its library is imported only then."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from pipeline_ver2.config import Telemetry
from pipeline_ver2.errors import ConfigError
from pipeline_ver2.main import Span, TimingRecorder
from pipeline_ver2.trace_context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status

log = logging.getLogger(__name__)

EXPORT_TIMEOUT_S = 2.0

_SERVICE = "zroact-stage2"
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_PATH = "/v1/traces"
_SPANS_A_REQUEST = 1000


def check_telemetry(config: Telemetry) -> None:
    """See whether what is configured is installed.

    Raises:
        ConfigError: It is not.
    """
    if config.otlp_endpoint is None:
        return
    try:
        import_module(_EXPORTER)
    except ModuleNotFoundError as error:
        raise ConfigError(f"telemetry.otlp_endpoint: needs {error.name}; install the extra otel") from error


def export_trace(
    config: Telemetry, trace: TraceContext, recorder: TimingRecorder, *, job_id: str, state: str, error: str | None
) -> None:
    """Send the spans of a job that has ended; blocks, a bounded time. What cannot be sent is logged and lost.

    Args:
        config: Where to; nothing is sent without an endpoint, nor for a trace that its client does not record.
        trace: The job's span.
        recorder: Times of the job's parts.
        job_id: An attribute.
        state: How the job ended, an attribute too.
        error: What went wrong.
    """
    if config.otlp_endpoint is None or not trace.sampled:
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    told = _Spans(trace, recorder).all(state, {"zroact.job_id": job_id, "zroact.state": state}, error)
    endpoint = config.otlp_endpoint.rstrip("/").removesuffix(_PATH) + _PATH
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
    try:
        for start in range(0, len(told), _SPANS_A_REQUEST):
            if exporter.export(told[start : start + _SPANS_A_REQUEST]) is not SpanExportResult.SUCCESS:
                log.warning("job %s: its trace %s could not be sent to %s", job_id, trace.trace_id, endpoint)
                return
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]


class _Spans:
    """Makes the spans of one trace; times of the recorder become times of the day."""

    def __init__(self, trace: TraceContext, recorder: TimingRecorder) -> None:
        from opentelemetry.sdk.resources import Resource

        self._trace = trace
        self._parts = recorder.spans
        self._now_s = recorder.now()
        self._epoch_ns = time.time_ns() - round(self._now_s * 1e9)
        self._resource = Resource({"service.name": _SERVICE, "service.version": version(_SERVICE)})

    def all(self, state: str, attributes: Mapping[str, str], error: str | None) -> list[ReadableSpan]:
        """The job, its requests to the stages, and their parts and its own: waiting, running, decoding."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        status = Status(StatusCode.ERROR, error) if state == "failed" else Status(StatusCode.OK)
        whole = Span("job", 0, self._now_s, attributes)
        job = self._made(whole, self._trace.span_id, self._trace.parent_id, kind=SpanKind.SERVER, status=status)
        requests = [
            self._made(request, span_id, self._trace.span_id, kind=SpanKind.CLIENT)
            for span_id, request in self._requests().items()
        ]
        parts = [
            self._made(part, secrets.token_hex(8), str(part.attributes.get("span_id", self._trace.span_id)))
            for part in self._parts
        ]
        return [job, *requests, *parts]

    def _requests(self) -> dict[str, Span]:
        """The requests to the stages by their span ids, each as long as its parts together."""
        found: dict[str, Span] = {}
        for part in self._parts:
            span_id = part.attributes.get("span_id")
            if isinstance(span_id, str):
                known = found.get(span_id, part)
                start_s, end_s = min(known.start_s, part.start_s), max(known.end_s, part.end_s)
                found[span_id] = Span(part.name.partition("_")[0], start_s, end_s, part.attributes)
        return found

    def _made(
        self,
        span: Span,
        span_id: str,
        parent_id: str | None,
        *,
        kind: SpanKind | None = None,
        status: Status | None = None,
    ) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanKind, Status

        return ReadableSpan(
            span.name,
            context=self._context(span_id),
            parent=None if parent_id is None else self._context(parent_id),
            resource=self._resource,
            attributes=span.attributes,
            kind=kind or SpanKind.INTERNAL,
            status=status or Status(),
            start_time=self._epoch_ns + round(span.start_s * 1e9),
            end_time=self._epoch_ns + round(span.end_s * 1e9),
        )

    def _context(self, span_id: str) -> SpanContext:
        from opentelemetry.trace import SpanContext, TraceFlags

        sampled = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(int(self._trace.trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=sampled)
