"""The documented steps between the sequential system and the orchestrator, kept only to be measured.

Option A dispatches all Stage 1 batches together and begins with Stage 2 when Stage 1 has ended; A + B is the same
with more than one Stage 2 request at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from pipeline_ver2 import report
from pipeline_ver2.config import Config
from pipeline_ver2.decoder import Decoder, KeyframeClip
from pipeline_ver2.errors import BadReply
from pipeline_ver2.job import Job
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.results import KeyframeRecord, Records, Results, SlotRecord, write_results
from pipeline_ver2.stage_clients import AnswererInfo, DetectorInfo, Stage1Client, Stage2Client
from pipeline_ver2.tracker import ReadySlot, SlotTracker

T = TypeVar("T")
R = TypeVar("R")


async def run_gathered(job: Job, config: Config, recorder: TimingRecorder) -> Results:
    """Options A and A + B: decode all; all of Stage 1; all of Stage 2, `pipeline.stage2_window` requests at a time.

    Raises:
        VideoError: The source cannot be used.
        StageError, RequestError: A request failed; a measurement with a failed request is none.
    """
    job.out.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        stage1 = await stack.enter_async_context(Stage1Client(config.stage1, retry_for_s=config.pipeline.retry_for_s))
        stage2 = await stack.enter_async_context(Stage2Client(config.stage2, config.pipeline))
        detector, answerer = await stage1.describe(), await stage2.describe()
        decoder = await stack.enter_async_context(Decoder(job.source, config, detector.image_size, recorder))
        run = _Gathered(job, config, recorder, stage1, stage2, detector, answerer, decoder)
        results = await run.conduct()
        write_results(job.out, results)
        return results


@dataclass(frozen=True, slots=True)
class _Gathered:
    """One run, one step after another."""

    job: Job
    config: Config
    recorder: TimingRecorder
    stage1: Stage1Client
    stage2: Stage2Client
    detector: DetectorInfo
    answerer: AnswererInfo
    decoder: Decoder

    async def conduct(self) -> Results:
        clips = await self._decode_all()
        size = self.config.stage1.batch_size
        batches = [clips[at : at + size] for at in range(0, len(clips), size)]
        found = await _together(self._detect, list(enumerate(batches)), self.config.stage1.max_in_flight)
        keyframes = [record for batch in found for record in batch]
        slots = await _together(self._evaluate, self._slots(clips, keyframes), self.config.pipeline.stage2_window)
        return report.build_results(
            source=self.job.source,
            video=self.decoder.info,
            extraction=self.decoder.report,
            models={"stage1": self.detector.as_dict(), "stage2": self.answerer.as_dict()},
            records=Records(
                {record.key_index: record for record in keyframes}, {record.index: record for record in slots}
            ),
            batches=len(batches),
            spans=self.recorder.spans,
            wall_s=self.recorder.now(),
        )

    async def _decode_all(self) -> list[KeyframeClip]:
        clips: list[KeyframeClip] = []
        while (clip := await self.decoder.next_clip()) is not None:
            clips.append(clip)
        return clips

    async def _detect(self, numbered: tuple[int, list[KeyframeClip]]) -> list[KeyframeRecord]:
        number, batch = numbered
        with self.recorder.span("stage1_run", batch=number):
            found = await self.stage1.detect([clip.clip for clip in batch], key=f"{self.job.job_id}/batch-{number}")
        records: list[KeyframeRecord] = []
        for clip, findings in zip(batch, found.clips, strict=True):
            if isinstance(findings, BadReply):
                raise findings
            detections = findings.detections(
                self.detector.labels,
                threshold=self.config.stage1.threshold,
                size=(self.decoder.info.width, self.decoder.info.height),
            )
            records.append(
                KeyframeRecord(key_index=clip.key_index, time_s=clip.time_s, state="ok", detections=detections)
            )
        return records

    def _slots(self, clips: list[KeyframeClip], keyframes: list[KeyframeRecord]) -> list[ReadySlot]:
        tracker = SlotTracker(self.config.pipeline.slot_frames)
        for clip in clips:
            tracker.expect(clip.key_index, clip.jpeg)
        slots = [*map(tracker.settle, keyframes), tracker.close()]
        return [slot for slot in slots if slot is not None]

    async def _evaluate(self, slot: ReadySlot) -> SlotRecord:
        begun = self.recorder.now()
        asked, times = await self.stage2.evaluate(
            slot.question(self.detector.labels),
            model=self.answerer.name,
            key=f"{self.job.job_id}/slot-{slot.index}",
        )
        ended = self.recorder.now()
        self.recorder.add("stage2_run", begun, ended, slot=slot.index)
        return slot.answered(asked, times, ended - begun)


async def _together(work: Callable[[T], Awaitable[R]], items: Sequence[T], limit: int) -> list[R]:
    """Do the work for every item, at most `limit` at a time; results in their order, a failure ends the rest."""
    permits = asyncio.Semaphore(limit)

    async def permitted(item: T) -> R:
        async with permits:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(permitted(item)) for item in items]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]
