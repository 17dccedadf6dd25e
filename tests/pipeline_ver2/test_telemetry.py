"""Traces of jobs, as a collector gets them."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from pipeline_ver2 import telemetry
from pipeline_ver2.config import Telemetry
from pipeline_ver2.errors import ConfigError
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.telemetry import check_telemetry, export_trace
from pipeline_ver2.trace_context import TraceContext
from tests.collector import Collector, collector

CLIENT = TraceContext.new()
REQUEST = "00f067aa0ba902b7"
OFF = "import sys, serving.server, pipeline_ver2.telemetry; sys.exit('opentelemetry.sdk' in sys.modules)"


def recorded() -> TimingRecorder:
    """A job that decoded and asked a stage once."""
    recorder = TimingRecorder()
    recorder.add("decode", 0.0, 1.0)
    recorder.add("stage1_wait", 1.0, 1.25, batch=0, span_id=REQUEST)
    recorder.add("stage1_run", 1.25, 2.0, batch=0, span_id=REQUEST)
    return recorder


def send(to: str | None, trace: TraceContext, state: str = "succeeded", error: str | None = None) -> None:
    """Export."""
    export_trace(Telemetry(otlp_endpoint=to), trace, recorded(), job_id="a", state=state, error=error)


def by_id(got: Collector) -> dict[str, str]:
    """The name of each span by its id."""
    return {span.span_id.hex(): span.name for span in got.spans}


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_the_spans_of_a_job(path: str) -> None:
    """The job under its client's span, requests under the job with the ids that went with them, parts below those."""
    trace = CLIENT.child()
    with collector() as got:
        send(got.url + path, trace)
    assert got.paths == ["/v1/traces"]
    assert got.resources[0]["service.name"] == "zroact-stage2"
    assert {span.trace_id.hex() for span in got.spans} == {CLIENT.trace_id}
    names = {CLIENT.span_id: "client", **by_id(got)}
    assert {span.name: names[span.parent_span_id.hex()] for span in got.spans} == {
        "job": "client",
        "decode": "job",
        "stage1": "job",
        "stage1_wait": "stage1",
        "stage1_run": "stage1",
    }
    assert (by_id(got)[trace.span_id], by_id(got)[REQUEST]) == ("job", "stage1")
    (request,) = got.named("stage1")
    assert (request.end_time_unix_nano - request.start_time_unix_nano) / 1e9 == pytest.approx(1.0, abs=1e-6)
    (job,) = got.named("job")
    attributes = {pair.key: pair.value.string_value for pair in job.attributes}
    assert attributes == {"zroact.job_id": "a", "zroact.state": "succeeded"}


def test_a_failed_job() -> None:
    """Its span says why; without a client's span it is the first of its trace."""
    with collector() as got:
        send(got.url, TraceContext.new(), "failed", "stage_unreachable: nobody there")
    (job,) = got.named("job")
    assert (job.status.code, job.status.message) == (2, "stage_unreachable: nobody there")
    assert job.parent_span_id == b""


def test_what_is_not_sent() -> None:
    """Nothing without an endpoint, nor of a trace that its client does not record."""
    with collector() as got:
        send(None, CLIENT)
        send(got.url, CLIENT.model_copy(update={"sampled": False}))
    assert got.spans == []


def test_many_spans_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is too large, none is left out."""
    monkeypatch.setattr(telemetry, "_SPANS_A_REQUEST", 2)
    with collector() as got:
        send(got.url, CLIENT)
    assert (len(got.paths), len(got.spans)) == (3, 5)


@pytest.mark.parametrize("answers", [True, False])
def test_a_collector_that_takes_nothing(
    answers: bool,  # noqa: FBT001 - a parameter of the test
    free_port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Is logged with the trace, and is no error."""
    with collector(400) as got, caplog.at_level(logging.WARNING):
        send(got.url if answers else f"http://127.0.0.1:{free_port}", CLIENT)
    assert f"trace {CLIENT.trace_id} could not be sent" in caplog.text


def test_it_is_imported_only_where_it_is_wanted() -> None:
    """A job server without an endpoint does not know the library."""
    assert subprocess.run([sys.executable, "-c", OFF], check=False).returncode == 0


def test_a_missing_library_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the key and the extra; without an endpoint nobody looks."""
    monkeypatch.setattr(telemetry, "_EXPORTER", "opentelemetry.nothing_of_that_name")
    check_telemetry(Telemetry())
    with pytest.raises(ConfigError, match=r"telemetry\.otlp_endpoint: .*extra otel"):
        check_telemetry(Telemetry(otlp_endpoint="http://127.0.0.1:4318"))
