"""How long a request holds its permit: an estimate from those that were answered."""

from __future__ import annotations

from collections import deque

_GAIN = 1 / 8
_DEVIATIONS = 3
_REMEMBERED = 128


class ServiceTime:
    """A moving mean and mean deviation, as TCP estimates its round trips (RFC 6298); all zero before the first.

    What a request *needs* is the mean and three deviations, but never more than the longest of the last 128. Equal
    times are therefore known exactly, and about one in 128 is longer than a need that rests on the longest.
    """

    def __init__(self) -> None:
        self.mean_s = 0.0
        self.needed_s = 0.0
        self.least_s = 0.0
        self._deviation_s = 0.0
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, seconds: float) -> None:
        """Take in how long one request was worked on."""
        if self._recent:
            self._deviation_s += _GAIN * (abs(seconds - self.mean_s) - self._deviation_s)
            self.mean_s += _GAIN * (seconds - self.mean_s)
        else:
            self.mean_s, self._deviation_s = seconds, seconds / 2
        self._recent.append(seconds)
        self.least_s = min(self._recent)
        self.needed_s = min(self.mean_s + _DEVIATIONS * self._deviation_s, max(self._recent))
