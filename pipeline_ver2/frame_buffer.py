"""Between the thread that reads a live source and the one that makes clips of its frames."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from fractions import Fraction

import av

from pipeline_ver2.config_live import Policy
from pipeline_ver2.errors import ZroactError
from pipeline_ver2.losses import Losses
from pipeline_ver2.results import GapRecord

BUFFER_FULL = "buffer_full"


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """A decoded frame as stored, its time in seconds since the first, and when it arrived, on the run's clock.

    `after_loss`: frames before it were dropped for lack of room.
    """

    picture: av.VideoFrame
    time: Fraction
    arrived_s: float
    after_loss: bool = False


Item = LiveFrame | GapRecord


class FrameBuffer:
    """Holds at most so many frames; its policy says what gives way when it is full. Gaps always have room.

    Once `finish` was called and all is taken, `take` returns None for ever, or raises what ended the source.
    """

    def __init__(self, most: int, policy: Policy, losses: Losses) -> None:
        self._most = most
        self._policy = policy
        self._losses = losses
        self._items: deque[Item] = deque()
        self._frames = 0
        self._lost_first = self._lost_last = False
        self._closed = self._finished = False
        self._error: ZroactError | None = None
        self._changed = threading.Condition()

    def put(self, item: Item) -> bool:
        """Add a frame or a gap, by the policy; False when nobody takes any more."""
        with self._changed:
            if isinstance(item, GapRecord):
                self._items.append(item)
            elif self._make_room():
                self._items.append(replace(item, after_loss=True) if self._lost_last else item)
                self._frames += 1
                self._lost_last = False
            self._changed.notify_all()
            return not self._closed

    def take(self, timeout_s: float) -> tuple[Item | None, bool]:
        """The next item, and whether more can come; None when none came in time.

        Raises:
            ZroactError: What ended the source, once all before it is taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._finished, timeout_s)
            if not self._items:
                if self._finished and self._error is not None:
                    raise self._error
                return None, not self._finished
            item = self._items.popleft()
            if isinstance(item, LiveFrame):
                self._frames -= 1
                if self._lost_first:
                    item = replace(item, after_loss=True)
                    self._lost_first = False
            self._changed.notify_all()
            return item, True

    def finish(self, error: ZroactError | None = None) -> None:
        """No more come, because of `error` if it is one."""
        with self._changed:
            self._finished, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody takes any more: what is held is let go, and whoever waits for room goes on."""
        with self._changed:
            self._closed = self._finished = True
            self._items.clear()
            self._frames = 0
            self._changed.notify_all()

    def _make_room(self) -> bool:
        """Whether a newcomer has a place."""
        if self._policy == "WAIT":
            self._changed.wait_for(lambda: self._closed or self._frames < self._most)
        if self._closed:
            return False
        if self._frames < self._most:
            return True
        self._losses.add("frames", BUFFER_FULL)
        if self._policy == "DROP_LATEST":
            self._lost_last = True
            return False
        self._items.remove(next(item for item in self._items if isinstance(item, LiveFrame)))
        self._frames -= 1
        self._lost_first = True
        return True
