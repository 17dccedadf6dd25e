"""How a run takes what it is given: a file at its own speed, a live source as it comes."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_ver2.config import Config
from pipeline_ver2.config_live import Policy
from pipeline_ver2.deadline import Deadline
from pipeline_ver2.job import Job

_LIVE_AHEAD = 2  # so many more than are answered at a time are sent, so that Stage 2 has something to order


@dataclass(frozen=True, slots=True)
class Pace:
    """`window` slots are sent at a time; a batch waits `batch_wait_s` for more (None: until it is full)."""

    window: int
    policy: Policy = "WAIT"
    batch_wait_s: float | None = None
    deadline_s: float | None = None

    @classmethod
    def of(cls, job: Job, config: Config) -> Pace:
        """The pace of a job."""
        if job.live is None:
            return cls(config.pipeline.stage2_window)
        return cls(
            window=config.stage2.most_at_once + _LIVE_AHEAD,
            policy=job.live.policy,
            batch_wait_s=config.stage1.batch_wait_ms / 1e3,
            deadline_s=job.live.deadline_s,
        )

    def deadline(self, arrived_s: float | None, now: float) -> Deadline | None:
        """Until when the answer to a frame that arrived then is of use; None if always."""
        if self.deadline_s is None or arrived_s is None:
            return None
        return Deadline.within(arrived_s + self.deadline_s - now)
