"""Files as replies."""

from __future__ import annotations

import re

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

_RANGE = rb"(?:\d{1,18}-\d{0,18}|-\d{1,18})"
_RANGES = re.compile(rb"bytes=%b(?:\s*,\s*%b)*" % (_RANGE, _RANGE), re.IGNORECASE)
_BOTH_ENDS = re.compile(rb"(\d+)-(\d+)")


class StoredFile(FileResponse):
    """A file or parts of it. A `Range` that is not understood is ignored, as RFC 9110, section 14.2, has it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send."""
        headers = [(name, value) for name, value in scope["headers"] if name != b"range" or _is_understood(value)]
        await super().__call__({**scope, "headers": headers}, receive, send)


def _is_understood(ranges: bytes) -> bool:
    """Whether they are ranges of bytes, none of which ends before it begins."""
    forwards = (int(first) <= int(last) for first, last in _BOTH_ENDS.findall(ranges))
    return _RANGES.fullmatch(ranges) is not None and all(forwards)
