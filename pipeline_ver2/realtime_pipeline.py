"""The orchestrator: a clip in, both stages at work at once, answers out.

decode (one thread) → batches → Stage 1 (at most `stage1.max_in_flight` requests) → slot tracker →
`asyncio.Queue` → `pipeline.stage2_window` consumers → results. No stage waits for the other; what is ahead waits
for what is behind through the bounds alone. An error of one slot is a result, a stage that stays away ends the run.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from contextlib import suppress

    with suppress(ModuleNotFoundError):  # told below
        from pipeline_ver2.interrupts import leave_quietly

        leave_quietly()

import asyncio
import logging
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

try:
    from pipeline_ver2 import report
except ModuleNotFoundError as missing:
    if missing.name != "pipeline_ver2":
        raise
    raise SystemExit(
        "zroact-stage2 is not installed for this Python: run `make setup`, or `pip install .`"
    ) from missing
from pipeline_ver2.batching import batched
from pipeline_ver2.config import Config
from pipeline_ver2.deadline import headers_of
from pipeline_ver2.decoder import Decoder, KeyframeClip
from pipeline_ver2.errors import BadReply, RequestError, StageError, StageUnreachable, ZroactError
from pipeline_ver2.events import EndReason
from pipeline_ver2.findings import ClipFindings
from pipeline_ver2.job import Job, Observer, Silent
from pipeline_ver2.live import LiveDecoder
from pipeline_ver2.losses import Losses, Lost
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.pace import Pace
from pipeline_ver2.prompts import check_settings
from pipeline_ver2.recent import RecentRecords
from pipeline_ver2.results import (
    GapRecord,
    Journal,
    KeyframeRecord,
    Records,
    Results,
    RunState,
    SlotRecord,
    write_results,
)
from pipeline_ver2.rotation import RotatingJournal
from pipeline_ver2.run_events import RunEvents
from pipeline_ver2.run_times import RunTimes
from pipeline_ver2.slot_queue import SlotQueue
from pipeline_ver2.stages import Stages, header_of, meet_stages
from pipeline_ver2.tracker import ReadySlot, SlotTracker

log = logging.getLogger(__name__)

_WHY_EVENTS_END: dict[RunState | None, EndReason] = {"cancelled": "cancelled", "failed": "failed"}


async def run_pipeline(
    job: Job,
    config: Config,
    observer: Observer | None = None,
    *,
    recorder: TimingRecorder | None = None,
    decode_executor: Executor | None = None,
) -> Results:
    """Run a video through both stages, which must be up, and write results.json into the output folder.

    Args:
        job: Source, output folder, how to treat earlier results.
        config: The configuration.
        observer: Is told of progress.
        recorder: Takes the spans of the run; its clock is the run's. None makes one.
        decode_executor: Where decoding runs instead of a thread of its own; one worker only.

    Raises:
        ConfigError: A setting does not fit what a stage says of itself.
        VideoError: The source cannot be used.
        ResultsError: The output folder cannot be used.
        StageError: A stage stayed away for `pipeline.retry_for_s`.
        asyncio.CancelledError: Passed on.

    Once frames are decoded, an error or a cancel leaves results.json with what there is, `failed` or `cancelled`.
    """
    recorder = recorder or TimingRecorder()
    check_settings(config.pipeline)
    async with AsyncExitStack() as stack:
        journal = stack.enter_context(_open_journal(job, config))
        stages, losses = await meet_stages(stack, config, job), Losses(job.stream or "")
        source = _Source(job, config, recorder, losses, decode_executor)
        decoder = await source.open(stack, stages.detector.image_size)
        earlier = journal.start(await header_of(job, config, stages))
        if job.live is not None:
            earlier = RecentRecords(config.live.recent, config.pipeline.slot_frames)
        told = RunEvents(config, job, observer or Silent())
        events = await stack.enter_async_context(told)
        run = _Run(job, config, recorder, journal, earlier, stages, decoder, events, losses)
        return await run.conduct()


def _open_journal(job: Job, config: Config) -> Journal:
    if job.live is None:
        return Journal(job.out, resume=job.resume)
    return RotatingJournal(job.out, config.live.rotate, resume=job.resume)


@dataclass(frozen=True, slots=True)
class _Source:
    """How the source of a job is opened."""

    job: Job
    config: Config
    recorder: TimingRecorder
    losses: Losses
    executor: Executor | None

    async def open(self, stack: AsyncExitStack, size: tuple[int, int]) -> Decoder | LiveDecoder:
        """Open it for as long as `stack` lasts; `size` is (height, width) of the detector's input."""
        live = self.job.live
        if live is None:
            decoder = Decoder(self.job.source, self.config, size, self.recorder, self.executor)
            return await stack.enter_async_context(decoder)
        follower = LiveDecoder(live, self.config, size, self.recorder, self.losses, self.job.allow)
        return await stack.enter_async_context(follower)


@dataclass
class _Run:
    """One run: what was decoded, what is in flight, what is settled."""

    job: Job
    config: Config
    recorder: TimingRecorder
    journal: Journal
    records: Records
    stages: Stages
    decoder: Decoder | LiveDecoder
    observer: RunEvents
    losses: Losses

    def __post_init__(self) -> None:
        settings = self.config.pipeline
        # Nothing of an earlier live run is settled: each begins at its own first frame.
        whole = self.job.keep_failed and self.job.live is None
        self.settled = self.records if whole else self.records.without_failures()
        self.pace = Pace.of(self.job, self.config)
        self.times = RunTimes(self.recorder)
        self.tracker = SlotTracker(settings.slot_frames)
        self.permits = asyncio.Semaphore(self.config.stage1.max_in_flight)
        self.ready = SlotQueue(settings.queue_size, self.pace.policy)
        self.batches = 0
        self.active = 0

    async def conduct(self) -> Results:
        """Run to the end, whichever it is, and write results.json."""
        try:
            await self._flow()
        except asyncio.CancelledError:
            await self._finish("cancelled", None)
            raise
        except BaseExceptionGroup as group:
            fatal = _first_of_ours(group)
            if fatal is None:
                raise
            await self._finish("failed", str(fatal))
            raise fatal from group
        return await self._finish(None, None)

    async def _flow(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.pace.window):
                group.create_task(self._consume(), name=f"consumer-{number}")
            async with asyncio.TaskGroup() as stage1:
                await self._produce(stage1)
            # End markers on the normal path only: after a failure the group's cancellation is the signal.
            await self.ready.end(self.pace.window)

    async def _produce(self, stage1: asyncio.TaskGroup) -> None:
        """Decode, form batches, and send each as soon as a permit is free."""
        size, wait_s = self.config.stage1.batch_size, self.pace.batch_wait_s
        async with aclosing(self._unseen()) as clips, aclosing(batched(clips, size, wait_s)) as batches:
            async for batch in batches:
                await self._dispatch(stage1, batch)
        self.observer.decoded(self.decoder.report.frames_grid, self.decoder.report.frames_grid)
        await self._offer(self.tracker.close())

    async def _unseen(self) -> AsyncGenerator[KeyframeClip, None]:
        """The clips Stage 1 has still to see."""
        expected = self._frames_expected()
        while (item := await self.decoder.next_clip()) is not None:
            self.observer.decoded(self.decoder.report.frames_grid, expected)
            if isinstance(item, GapRecord):
                self.journal.append(item)
                await self._offer(self.tracker.close())
                continue
            self.tracker.expect(item.key_index, item.jpeg, item.arrived_s)
            known = self.settled.keyframes.get(item.key_index)
            if known is None:
                yield item
            else:
                self.observer.settled(known)
                await self._offer(self.tracker.settle(known))

    def _frames_expected(self) -> int | None:
        duration, fps = self.decoder.info.duration_s, self.config.pipeline.grid_fps or self.decoder.info.fps
        return None if duration is None or fps is None else round(duration * fps)

    async def _dispatch(self, stage1: asyncio.TaskGroup, batch: list[KeyframeClip]) -> None:
        await self.permits.acquire()
        number = self.batches
        self.batches += 1
        log.info("Stage 1 batch %d dispatched: keyframes %s", number, [clip.key_index for clip in batch])
        stage1.create_task(self._detect(number, batch), name=f"batch-{number}")

    async def _detect(self, number: int, batch: list[KeyframeClip]) -> None:
        try:
            records = await self._ask_detector(number, batch)
            for record in records:
                self._record(record)
                await self._offer(self.tracker.settle(record))
        finally:
            self.permits.release()

    async def _ask_detector(self, number: int, batch: list[KeyframeClip]) -> list[KeyframeRecord]:
        key, deadline = self.job.key(f"batch-{number}"), self.pace.deadline(batch[-1].arrived_s, self.recorder.now())
        try:
            found = await self.stages.stage1.detect([clip.clip for clip in batch], key=key, deadline=deadline)
        except (StageError, RequestError) as error:
            if isinstance(error, StageUnreachable) and deadline is None:
                raise
            log.warning("Stage 1 batch %d failed: %s", number, error)
            reason = f"{error.code}: {error}"
            return [
                KeyframeRecord(key_index=clip.key_index, time_s=clip.time_s, state="failed", reason=reason)
                for clip in batch
            ]
        self.times.add_request("stage1", found.times, batch=number)
        log.info("Stage 1 batch %d processed in %.3f s", number, found.times.total_s)
        return [self._keyframe(clip, findings) for clip, findings in zip(batch, found.clips, strict=True)]

    def _keyframe(self, clip: KeyframeClip, findings: ClipFindings | BadReply) -> KeyframeRecord:
        size, threshold = (self.decoder.info.width, self.decoder.info.height), self.config.stage1.threshold
        try:
            if isinstance(findings, BadReply):
                raise findings
            detections = findings.detections(self.stages.detector.labels, threshold=threshold, size=size)
        except BadReply as error:
            reason = f"{error.code}: {error}"
            return KeyframeRecord(key_index=clip.key_index, time_s=clip.time_s, state="failed", reason=reason)
        return KeyframeRecord(key_index=clip.key_index, time_s=clip.time_s, state="ok", detections=detections)

    async def _offer(self, slot: ReadySlot | None) -> None:
        """Hand a ready slot on to Stage 2, unless it is settled already or need not be asked."""
        if slot is None:
            return
        settled = self.settled.slots.get(slot.index)
        unasked = slot.unasked(self.config.pipeline.gate)
        if settled is not None:
            self.observer.answered(slot, settled)
            self.observer.settled(settled)
        elif unasked is not None:
            self._record(unasked, slot)
        else:
            frames, last = len(slot.images), slot.key_indices[-1]
            log.info("Slot %d-frame ready for Keyframe Index %d (slot %d)", frames, last, slot.index)
            displaced = await self.ready.put(slot, self.recorder.now())
            if displaced is not None:
                said = f"queue_full: {self.config.pipeline.queue_size} slots waited already (pipeline.queue_size)"
                self._record(displaced.dropped(said), displaced)

    async def _consume(self) -> None:
        window = self.pace.window
        while (taken := await self.ready.get()) is not None:
            slot, since = taken
            self.active += 1
            try:
                log.info("Active VLM Semaphore count: %d/%d (slot %d)", self.active, window, slot.index)
                await self._evaluate(slot, since)
            finally:
                self.active -= 1

    async def _evaluate(self, slot: ReadySlot, since: float) -> None:
        begun = self.recorder.now()
        self.recorder.add("slot_wait", since, begun, slot=slot.index)
        question, key = slot.question(self.stages.detector.labels), self.job.key(f"slot-{slot.index}")
        deadline, model = self.pace.deadline(slot.arrived_s, begun), self.stages.answerer.name
        try:
            headers_of(deadline)  # what is too late already is not even packed
            asked, times = await self.stages.stage2.evaluate(question, model=model, key=key, deadline=deadline)
        except (StageError, RequestError) as error:
            if isinstance(error, StageUnreachable) and deadline is None:
                raise
            log.log(logging.INFO if deadline else logging.WARNING, "Slot %d refused: %s", slot.index, error)
            self._record(slot.refused(error), slot)
            return
        duration_s = self.recorder.now() - begun
        if times is not None:
            self.times.add_request("stage2", times, slot=slot.index)
        log.info("Slot %d: VLM took %.2f s, sends %d", slot.index, duration_s, asked.attempts)
        self._record(slot.answered(asked, times, duration_s), slot)

    def _record(self, record: KeyframeRecord | SlotRecord, slot: ReadySlot | None = None) -> None:
        if slot is not None and isinstance(record, SlotRecord):
            record = self.times.stamp(record, slot)
        self.records.add(record)
        self.journal.append(record)
        if self.job.live is not None and record.state not in {"ok", "skipped"}:
            kind: Lost = "slots" if isinstance(record, SlotRecord) else "keyframes"
            self.losses.add(kind, (record.reason or record.state).partition(":")[0])
        if slot is not None and isinstance(record, SlotRecord):
            self.observer.answered(slot, record)
        self.observer.settled(record)

    async def _finish(self, state: RunState | None, error: str | None) -> Results:
        wall_s = self.recorder.now()  # telling others of the last events is no work of the run
        try:
            await self.observer.close(_WHY_EVENTS_END.get(state, "end_of_source"))
        finally:
            results = self._write_results(state, error, wall_s)
        return results

    def _write_results(self, state: RunState | None, error: str | None, wall_s: float) -> Results:
        results = report.build_results(
            source=self.job.source,
            video=self.decoder.info,
            extraction=self.decoder.report,
            models={"stage1": self.stages.detector.as_dict(), "stage2": self.stages.answerer.as_dict()},
            records=self.records,
            batches=self.batches,
            spans=self.recorder.spans,
            wall_s=wall_s,
            untimed=self.recorder.dropped,
            ended=(state, error),
            events=self.observer.begun,
            unsent=self.observer.warnings,
        )
        if isinstance(self.decoder, LiveDecoder):
            self.losses.flush()
            latency, gaps = self.times.latencies.summary(), self.decoder.gaps
            lost = self.losses.as_dict()
            results = report.add_live(results, source=self.job.name, gaps=gaps, lost=lost, latency=latency)
        write_results(self.job.out, results)
        log.info("Total wall-clock time: %.2f s (%s)", results.timing.wall_s, results.state)
        return results


def _first_of_ours(group: BaseExceptionGroup[BaseException]) -> ZroactError | None:
    """The first error of the tree, if the group holds nothing else."""
    ours, others = group.split(ZroactError)
    if ours is None or others is not None:
        return None
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, ZroactError) else None


if __name__ == "__main__":
    from pipeline_ver2.command import main

    main()
