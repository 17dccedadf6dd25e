"""How many clips go into one run: the file's own number, or a few sizes that were all run once at the start.

An accelerator looks for the fastest way of every new size when it first comes, which can take seconds. So batches are
filled up to one of few sizes, and the start runs them all. A CPU needs no such search, and would really compute what
fills a batch up, so there a batch stays as long as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

_HALVINGS = 2


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The sizes to warm, ascending; whether every run has one of them; and the most clips of one run."""

    warmed: tuple[int, ...]
    pads: bool
    largest: int

    def padded(self, count: int) -> int:
        """The size of a run of so many clips."""
        return next((size for size in self.warmed if size >= count), self.largest) if self.pads else count

    def spans(self, count: int) -> Iterator[tuple[int, int]]:
        """Where the runs over so many clips start and end."""
        return ((start, min(start + self.largest, count)) for start in range(0, count, self.largest))


def batch_sizes(fixed: int | None, max_batch: int, *, on_cpu: bool) -> BatchSizes:
    """The sizes for a file fixed at `fixed` clips, or free, in batches of at most `max_batch`."""
    if fixed is not None:
        return BatchSizes((fixed,), pads=True, largest=fixed)
    if on_cpu:  # 2, since a file may call its batch free and yet be made for 1
        return BatchSizes(tuple(sorted({1, min(2, max_batch)})), pads=False, largest=max_batch)
    halves = {math.ceil(max_batch / 2**halving) for halving in range(_HALVINGS + 1)}
    return BatchSizes(tuple(sorted({1, *halves})), pads=True, largest=max_batch)
