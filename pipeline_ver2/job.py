"""What a run is asked to do, and who is told of its progress."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.live_body import Allow
from pipeline_ver2.results import KeyframeRecord, SlotRecord
from pipeline_ver2.trace_context import TraceContext
from pipeline_ver2.tracker import ReadySlot


@dataclass(frozen=True, slots=True)
class Job:
    """One run. `job_id` marks its requests, so that a stage can join or replay one that is sent again.

    `stream` is what its events call the source; without one it is the name of the file.

    `trace` is the run's span; each of its requests is a child of it. `allow` says where a live source may lead.
    """

    source: Path
    out: Path
    resume: bool = False
    keep_failed: bool = False
    stream: str | None = None
    job_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    trace: TraceContext = field(default_factory=TraceContext.new)
    live: LiveSource | None = None
    allow: Allow | None = None

    @property
    def name(self) -> str:
        """What the source is called."""
        return self.source.name if self.live is None else self.live.name

    def key(self, part: str) -> str:
        """The idempotency key of a request, and before the slash its client."""
        if self.live is None or self.stream is None:
            return f"{self.job_id}/{part}"
        return f"{self.stream}/{self.job_id}-{part}"


class Observer(Protocol):
    """Is told of progress, in the event loop; must not block."""

    def decoded(self, frames_grid: int, frames_expected: int | None) -> None:
        """So many grid frames are decoded, of so many if the header can be believed."""

    def answered(self, slot: ReadySlot, record: SlotRecord) -> None:
        """A slot with its images is about to be told as settled, now or, when a run goes on, in an earlier one."""

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """A keyframe or a slot has its record."""


class Silent:
    """An observer that keeps it to itself."""

    def decoded(self, frames_grid: int, frames_expected: int | None) -> None:
        """Say nothing."""

    def answered(self, slot: ReadySlot, record: SlotRecord) -> None:
        """Say nothing."""

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """Say nothing."""
