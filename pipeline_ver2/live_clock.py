"""The times of a live source's frames: 0 at the first, always growing, whatever the camera's clock does."""

from __future__ import annotations

from fractions import Fraction

_BACK_STEPS = 3  # so many frames back is another timeline, less is a frame out of order
_SLACK_S = Fraction(2)  # how much further than the clock on the wall a timestamp may go at once: frames come in bursts


class LiveClock:
    """Places frames of one source after another connection after connection.

    Within a connection times are those of the timestamps. Where they jump, wrap round or begin again, and from one
    connection to the next, the time that passed here counts.
    """

    def __init__(self) -> None:
        self.last: Fraction | None = None
        self.jumps = self.repeated = 0
        self._step = Fraction(1, 25)
        self._origin: Fraction | None = None
        self._began_s = self._last_arrival_s = 0.0

    def connect(self, step: Fraction) -> None:
        """A new connection begins, whose frames are `step` seconds apart."""
        self._origin, self._step = None, step

    def place(self, stamp: Fraction | None, arrived_s: float) -> Fraction | None:
        """Time of the next frame, seconds; None if it repeats or precedes the frame before it.

        Args:
            stamp: Its timestamp in seconds; None where the source has none, or none that mean anything.
            arrived_s: When it arrived, on a clock that never jumps.
        """
        if self.last is None:
            self._began_s, time = arrived_s, Fraction(0)
        elif self._origin is None or stamp is None:
            time = max(self.last + self._step / 2, _exact(arrived_s - self._began_s))
        else:
            ahead, passed = stamp - self._origin - self.last, _exact(arrived_s - self._last_arrival_s)
            if -_BACK_STEPS * self._step < ahead <= 0:
                self.repeated += 1
                return None
            if 0 < ahead <= passed + _SLACK_S:
                time = self.last + ahead
            else:
                self.jumps += 1
                self._origin = None
                time = self.last + max(self._step, passed)
        if stamp is not None and self._origin is None:
            self._origin = stamp - time
        self.last, self._last_arrival_s = time, arrived_s
        return time


def _exact(seconds: float) -> Fraction:
    return Fraction(round(seconds * 1_000_000), 1_000_000)
