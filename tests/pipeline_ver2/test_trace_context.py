"""The W3C's `traceparent`."""

from __future__ import annotations

import pytest

from pipeline_ver2.trace_context import TraceContext

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("03", True), ("02", False)])
def test_what_a_header_says(flags: str, sampled: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Trace, span, and whether somebody records it."""
    found = TraceContext.parse(f"00-{TRACE}-{SPAN}-{flags}")
    assert found == TraceContext(trace_id=TRACE, span_id=SPAN, sampled=sampled)


def test_a_later_version_may_say_more() -> None:
    """What follows the known part is left alone."""
    assert TraceContext.parse(f"cc-{TRACE}-{SPAN}-01-what") is not None


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-what",
        f"00-{TRACE}-{SPAN}-01x",
        f"cc-{TRACE}-{SPAN}-01.x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_what_is_no_header(header: str | None) -> None:
    """It is ignored, as the recommendation says."""
    assert TraceContext.parse(header) is None


def test_children() -> None:
    """A span of its own in the same trace; its header is read back as it is."""
    parent = TraceContext.new()
    children = [parent.child() for _ in range(100)]
    assert len({child.span_id for child in children} | {parent.span_id}) == 101
    for child in children:
        assert (child.trace_id, child.parent_id) == (parent.trace_id, parent.span_id)
        assert TraceContext.parse(child.header) == child.model_copy(update={"parent_id": None})
    assert TraceContext.new().trace_id != parent.trace_id
