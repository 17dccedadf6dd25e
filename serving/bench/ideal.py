"""What the documented workload would take if nothing but the two engines took time."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Workload:
    """The documented workload: how much there is of what, and the service time of one request at each stage."""

    frames: int = 419
    keyframe_interval: int = 11
    batch_size: int = 4
    slot_frames: int = 3
    stage1_s: float = 0.174
    stage2_s: float = 2.07

    @property
    def keyframes(self) -> int:
        """Every `keyframe_interval`-th frame, and one at least."""
        return max(1, self.frames // self.keyframe_interval)

    @property
    def batches(self) -> int:
        """Stage 1 requests."""
        return math.ceil(self.keyframes / self.batch_size)

    @property
    def slots(self) -> int:
        """Stage 2 requests."""
        return math.ceil(self.keyframes / self.slot_frames)

    def hurried(self, times: float) -> Workload:
        """As much to do, with service times so many times shorter."""
        return replace(self, stage1_s=self.stage1_s / times, stage2_s=self.stage2_s / times)


def finish_s(workload: Workload, *, limit: int, overlap: bool) -> float:
    """When the last answer comes, seconds from the start, without any overhead.

    All frames are there at once. Stage 1 takes one batch after another; Stage 2 takes the slots in their order,
    `limit` at a time.

    Args:
        workload: What there is to do.
        limit: Stage 2 requests at a time.
        overlap: Whether a slot may go to Stage 2 as soon as its own keyframes are through Stage 1, or only when all
            keyframes of the video are.
    """
    detected = [(batch + 1) * workload.stage1_s for batch in range(workload.batches)]
    free = [0.0] * limit
    for slot in range(workload.slots):
        last_keyframe = min((slot + 1) * workload.slot_frames, workload.keyframes) - 1
        ready = detected[last_keyframe // workload.batch_size] if overlap else detected[-1]
        heapq.heapreplace(free, max(ready, free[0]) + workload.stage2_s)
    return max(free)
