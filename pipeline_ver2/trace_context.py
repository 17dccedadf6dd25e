"""Where a piece of work stands in a distributed trace: https://www.w3.org/TR/trace-context/."""

from __future__ import annotations

import re
import secrets
from typing import Self

from pydantic import BaseModel, ConfigDict

TRACEPARENT_HEADER = "traceparent"

_HEADER = re.compile(r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})")
_SAMPLED = 1


class TraceContext(BaseModel):
    """One span of a trace, and the span it is part of. Ids are lower-case hexadecimal digits, 32 and 16 of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trace_id: str
    span_id: str
    parent_id: str | None = None
    sampled: bool = True

    @classmethod
    def new(cls) -> Self:
        """The first span of a trace of its own."""
        return cls(trace_id=secrets.token_hex(16), span_id=secrets.token_hex(8))

    @classmethod
    def parse(cls, header: str | None) -> Self | None:
        """The span a `traceparent` header names; None without one, and for one that is to be ignored."""
        text = (header or "").strip()
        found = _HEADER.match(text)
        if found is None or found["version"] == "ff" or not (int(found["trace"], 16) and int(found["span"], 16)):
            return None
        rest = text[found.end() :]
        if rest and (found["version"] == "00" or not rest.startswith("-")):  # later versions may say more
            return None
        sampled = bool(int(found["flags"], 16) & _SAMPLED)
        return cls(trace_id=found["trace"], span_id=found["span"], sampled=sampled)

    def child(self) -> Self:
        """A new span that is part of this one."""
        return self.model_copy(update={"span_id": secrets.token_hex(8), "parent_id": self.span_id})

    @property
    def header(self) -> str:
        """The value of `traceparent` that tells others about this span."""
        return f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.sampled else 0:02x}"
