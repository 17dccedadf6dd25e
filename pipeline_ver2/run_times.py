"""What a run writes down of its times: spans of requests, and how late the answers to live slots are."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pipeline_ver2.latency import Latencies
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.report import END_TO_END
from pipeline_ver2.results import SlotRecord
from pipeline_ver2.stage_http import StageTimes
from pipeline_ver2.tracker import ReadySlot


@dataclass(slots=True)
class RunTimes:
    """The times of one run, on its recorder's clock."""

    recorder: TimingRecorder
    latencies: Latencies = field(default_factory=Latencies)

    def add_request(self, stage: str, times: StageTimes, **ids: int) -> None:
        """Spans of a request just answered: the stage's own word on running where it gave one, else all of it."""
        done = self.recorder.now()
        sent = done - times.total_s
        run_from = sent if times.run_s is None else max(sent, done - times.run_s)
        told: dict[str, int | str] = {**ids} if times.span_id is None else {**ids, "span_id": times.span_id}
        self.recorder.add(f"{stage}_wait", sent, run_from, **told)
        self.recorder.add(f"{stage}_run", run_from, done, **told)

    def stamp(self, record: SlotRecord, slot: ReadySlot) -> SlotRecord:
        """The record of a slot that is settled now, with the times of a live source's frames where it has them."""
        if slot.arrived_s is None:
            return record
        now = self.recorder.now()
        latency_s = now - slot.arrived_s
        arrived_at = datetime.now(UTC) - timedelta(seconds=latency_s)
        if record.state != "ok":
            return record.model_copy(update={"arrived_at": arrived_at})
        self.latencies.add(latency_s)
        self.recorder.add(END_TO_END, slot.arrived_s, now, slot=slot.index)
        return record.model_copy(update={"arrived_at": arrived_at, "latency_s": latency_s})
