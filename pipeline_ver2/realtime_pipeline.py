"""The orchestrator: a clip in, both stages at work at once, answers out.

decode (one thread) → batches → Stage 1 (at most `stage1.max_in_flight` requests) → slot tracker →
`asyncio.Queue` → `pipeline.stage2_window` consumers → results. No stage waits for the other; what is ahead waits
for what is behind through the bounds alone. An error of one slot is a result, a stage that stays away ends the run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass

try:
    from pipeline_ver2 import report
except ModuleNotFoundError as missing:
    if missing.name != "pipeline_ver2":
        raise
    raise SystemExit(
        "zroact-stage2 is not installed for this Python: run `make setup`, or `pip install .`"
    ) from missing
from pipeline_ver2.config import Config
from pipeline_ver2.decoder import Decoder, KeyframeClip
from pipeline_ver2.errors import (
    BadReply,
    ConfigError,
    RequestError,
    StageError,
    StageUnreachable,
    ZroactError,
)
from pipeline_ver2.events import EndReason
from pipeline_ver2.findings import ClipFindings
from pipeline_ver2.job import Job, Observer, Silent
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.prompts import check_settings
from pipeline_ver2.results import (
    Header,
    Journal,
    KeyframeRecord,
    Records,
    Results,
    RunState,
    SlotRecord,
    fingerprint,
    sha256_of,
    write_results,
)
from pipeline_ver2.run_events import RunEvents
from pipeline_ver2.stage_clients import (
    AnswererInfo,
    DetectorInfo,
    Stage1Client,
    Stage2Client,
)
from pipeline_ver2.stage_http import StageTimes
from pipeline_ver2.trace_context import TraceContext
from pipeline_ver2.tracker import ReadySlot, SlotTracker

log = logging.getLogger(__name__)

_WHY_EVENTS_END: dict[RunState | None, EndReason] = {"cancelled": "cancelled", "failed": "failed"}


@dataclass(frozen=True, slots=True)
class _Stages:
    """Both clients, and what each stage says of its model."""

    stage1: Stage1Client
    stage2: Stage2Client
    detector: DetectorInfo
    answerer: AnswererInfo


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
        journal = stack.enter_context(Journal(job.out, resume=job.resume))
        stages = await _meet_stages(stack, config, job.trace)
        decoder = await stack.enter_async_context(
            Decoder(job.source, config, stages.detector.image_size, recorder, decode_executor)
        )
        earlier = journal.start(await _header(job, config, stages))
        told = RunEvents(config, job.out, job.stream or job.source.stem, observer or Silent())
        events = await stack.enter_async_context(told)
        run = _Run(job, config, recorder, journal, earlier, stages, decoder, events)
        return await run.conduct()


async def _meet_stages(stack: AsyncExitStack, config: Config, trace: TraceContext) -> _Stages:
    detector_client = Stage1Client(config.stage1, retry_for_s=config.pipeline.retry_for_s, trace=trace)
    stage1 = await stack.enter_async_context(detector_client)
    stage2 = await stack.enter_async_context(Stage2Client(config.stage2, config.pipeline, trace=trace))
    detector, answerer = await stage1.describe(), await stage2.describe()
    if detector.clip_length != config.stage1.clip_length:
        raise ConfigError(
            f"stage1.clip_length: is {config.stage1.clip_length}, but the model takes {detector.clip_length} frames"
        )
    log.info("Stage 1 daemon active: %s (%s) at %s", detector.name, detector.engine, config.stage1.base_url)
    log.info("Stage 2 daemon active: %s (%s) at %s", answerer.name, answerer.engine, config.stage2.base_url)
    return _Stages(stage1, stage2, detector, answerer)


async def _header(job: Job, config: Config, stages: _Stages) -> Header:
    stop = threading.Event()
    try:
        return await asyncio.to_thread(_make_header, job, config, stages, stop)
    finally:
        stop.set()


def _make_header(job: Job, config: Config, stages: _Stages, stop: threading.Event) -> Header:
    settings = {
        "pipeline": config.pipeline.model_dump(exclude={"queue_size", "stage2_window", "retry_for_s", "overlay"}),
        "clip": config.stage1.model_dump(include={"clip_length", "sampling_rate", "threshold", "nms_iou"}),
        "detector": stages.detector.as_dict(),
        "answerer": [stages.answerer.name, stages.answerer.engine == "emulated", config.stage2.max_tokens],
    }
    return Header(source_sha256=sha256_of(job.source, stop), fingerprint=fingerprint(settings))


@dataclass
class _Run:
    """One run: what was decoded, what is in flight, what is settled."""

    job: Job
    config: Config
    recorder: TimingRecorder
    journal: Journal
    records: Records
    stages: _Stages
    decoder: Decoder
    observer: RunEvents

    def __post_init__(self) -> None:
        settings = self.config.pipeline
        self.settled = self.records if self.job.keep_failed else self.records.without_failures()
        self.tracker = SlotTracker(settings.slot_frames)
        self.permits = asyncio.Semaphore(self.config.stage1.max_in_flight)
        self.ready: asyncio.Queue[tuple[ReadySlot, float] | None] = asyncio.Queue(settings.queue_size)
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
        window = self.config.pipeline.stage2_window
        async with asyncio.TaskGroup() as group:
            for number in range(window):
                group.create_task(self._consume(), name=f"consumer-{number}")
            async with asyncio.TaskGroup() as stage1:
                await self._produce(stage1)
            # End markers on the normal path only: after a failure the group's cancellation is the signal.
            for _ in range(window):
                await self.ready.put(None)

    async def _produce(self, stage1: asyncio.TaskGroup) -> None:
        """Decode, form batches, and send each as soon as a permit is free."""
        batch: list[KeyframeClip] = []
        expected = self._frames_expected()
        while (clip := await self.decoder.next_clip()) is not None:
            self.observer.decoded(self.decoder.report.frames_grid, expected)
            self.tracker.expect(clip.key_index, clip.jpeg)
            known = self.settled.keyframes.get(clip.key_index)
            if known is not None:
                self.observer.settled(known)
                await self._offer(self.tracker.settle(known))
                continue
            batch.append(clip)
            if len(batch) == self.config.stage1.batch_size:
                await self._dispatch(stage1, batch)
                batch = []
        if batch:
            await self._dispatch(stage1, batch)
        self.observer.decoded(self.decoder.report.frames_grid, self.decoder.report.frames_grid)
        await self._offer(self.tracker.close())

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
        key = f"{self.job.job_id}/batch-{number}"
        try:
            found = await self.stages.stage1.detect([clip.clip for clip in batch], key=key)
        except StageUnreachable:
            raise
        except (StageError, RequestError) as error:
            log.warning("Stage 1 batch %d failed: %s", number, error)
            reason = f"{error.code}: {error}"
            return [
                KeyframeRecord(key_index=clip.key_index, time_s=clip.time_s, state="failed", reason=reason)
                for clip in batch
            ]
        _record_times(self.recorder, "stage1", found.times, batch=number)
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
            await self.ready.put((slot, self.recorder.now()))

    async def _consume(self) -> None:
        window = self.config.pipeline.stage2_window
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
        question, key = slot.question(self.stages.detector.labels), f"{self.job.job_id}/slot-{slot.index}"
        try:
            asked, times = await self.stages.stage2.evaluate(question, model=self.stages.answerer.name, key=key)
        except StageUnreachable:
            raise
        except (StageError, RequestError) as error:
            log.warning("Slot %d refused: %s", slot.index, error)
            self._record(slot.refused(error), slot)
            return
        duration_s = self.recorder.now() - begun
        if times is not None:
            _record_times(self.recorder, "stage2", times, slot=slot.index)
        log.info("Slot %d: VLM took %.2f s, sends %d", slot.index, duration_s, asked.attempts)
        self._record(slot.answered(asked, times, duration_s), slot)

    def _record(self, record: KeyframeRecord | SlotRecord, slot: ReadySlot | None = None) -> None:
        self.records.add(record)
        self.journal.append(record)
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
        write_results(self.job.out, results)
        log.info("Total wall-clock time: %.2f s (%s)", results.timing.wall_s, results.state)
        return results


def _record_times(recorder: TimingRecorder, stage: str, times: StageTimes, **ids: int) -> None:
    """Spans of a request just answered: the stage's own word on running where it gave one, else all of it."""
    done = recorder.now()
    sent = done - times.total_s
    run_from = sent if times.run_s is None else max(sent, done - times.run_s)
    told: dict[str, int | str] = {**ids} if times.span_id is None else {**ids, "span_id": times.span_id}
    recorder.add(f"{stage}_wait", sent, run_from, **told)
    recorder.add(f"{stage}_run", run_from, done, **told)


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
