"""Ctrl-C while a program still imports what it needs, which takes half a second: it ends without a traceback."""

from __future__ import annotations

import os
import signal
from types import FrameType

_EXIT_INTERRUPTED = 130


def leave_quietly() -> None:
    """From now on Ctrl-C ends the process at once; nothing is there yet that would have to be put away."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or somebody's own
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """From now on Ctrl-C is a `KeyboardInterrupt`, so that what was begun is put away."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(_EXIT_INTERRUPTED)
