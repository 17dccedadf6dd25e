"""When an answer must be there to be of use."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pipeline_ver2 import wire
from pipeline_ver2.errors import DeadlineShed


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on `time.monotonic`."""

    at: float

    @classmethod
    def within(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """Seconds from now; negative if it is past."""
        return self.at - time.monotonic()

    def headers(self) -> dict[str, str]:
        """What tells a stage how much time is left.

        Raises:
            DeadlineShed: None is.
        """
        left_s = self.left_s
        if left_s <= 0:
            raise DeadlineShed(f"the deadline was {-left_s:.2f} s ago, before it was sent")
        return {wire.DEADLINE_HEADER: str(max(1, int(left_s * 1e3)))}


def headers_of(deadline: Deadline | None) -> dict[str, str]:
    """The headers of a deadline; none without one.

    Raises:
        DeadlineShed: It is past.
    """
    return {} if deadline is None else deadline.headers()
