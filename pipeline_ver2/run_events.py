"""The events of one run: made of its slots as they settle, written down, and told to whom the configuration names."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from pipeline_ver2.config import Config, PipelineConfig
from pipeline_ver2.event_file import EVENTS_NAME, EventFile, image_name, new_run_id
from pipeline_ver2.events import EndReason, Event, EventTracker, Notice
from pipeline_ver2.job import Job, Observer
from pipeline_ver2.mqtt import MqttSink
from pipeline_ver2.results import KeyframeRecord, SlotRecord
from pipeline_ver2.sinks import Outlet, WebhookSink, flush
from pipeline_ver2.tracker import ReadySlot

log = logging.getLogger(__name__)

_CANCEL_FLUSH_S = 0.3
"""Whoever cancels waits."""
_MQTT_RETRY_S = 0.5


class RunEvents:
    """An observer of a run, between the run and its own observer; holds files and connections from enter to exit.

    Args:
        config: The configuration; its section `events` says who is told.
        job: The run, whose output folder exists. A live source is not seen again from its beginning when the run
            goes on, so earlier events stay.
        observer: Is told all that is told here.
    """

    def __init__(self, config: Config, job: Job, observer: Observer) -> None:
        self._config = config.events
        self._stream = job.stream or (job.source.stem if job.live is None else job.live.name)
        self._observer = observer
        self._live = job.live is not None
        self._slot_s = _slot_s(config.pipeline)
        # By then a slot has been answered or given up.
        settled_s = (job.live and job.live.deadline_s) or 2 * config.stage2.timeout_s
        self._longest_silence_s = settled_s + (config.events.gap_slots + 1.5) * (self._slot_s or 0)
        self._heard_at = 0.0
        self._file: EventFile | None = None
        if config.events.file:
            self._file = EventFile(job.out, max_mb=config.events.max_file_mb, max_images=config.events.max_images)
        self._outlets = self._make_outlets()
        self._stack = AsyncExitStack()
        self._tracker: EventTracker | None = None
        self._unwritten: str | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for outlet in self._outlets:
                await stack.enter_async_context(outlet)
            run_id, left = await asyncio.to_thread(self._begin)
            if self._file is not None:
                stack.callback(self._file.close)
            self._stack = stack.pop_all()
        self._tracker = EventTracker(
            self._tell,
            run_id=run_id,
            stream=self._stream,
            gap_slots=self._config.gap_slots,
            look_ahead=self._config.look_ahead,
            slot_s=self._slot_s,
        )
        if self._live:
            watching = asyncio.create_task(self._watch(), name="silence of a live source")
            self._stack.push_async_callback(_cancelled, watching)
        for event in left:
            self._tell(Notice(event.model_copy(update={"state": "ended", "reason": "interrupted"}), None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def decoded(self, frames_grid: int, frames_expected: int | None) -> None:
        """Pass it on."""
        self._observer.decoded(frames_grid, frames_expected)

    def answered(self, slot: ReadySlot, record: SlotRecord) -> None:
        """Take the slot's image, and pass it on."""
        self._entered.answered(slot, record)
        self._observer.answered(slot, record)

    def settled(self, record: KeyframeRecord | SlotRecord) -> None:
        """Pass it on, and see what it means for events."""
        self._observer.settled(record)
        self._heard_at = time.monotonic()
        self._entered.settled(record)

    async def close(self, reason: EndReason) -> None:
        """No more slots come; an event that goes on ends, and all news has a bounded time to be delivered."""
        self._entered.close(reason)
        within_s = self._config.flush_s
        await flush(self._outlets, min(within_s, _CANCEL_FLUSH_S) if reason == "cancelled" else within_s)
        await self._stack.aclose()

    @property
    def begun(self) -> int:
        """How many events there were."""
        return self._entered.begun

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was not told, or not written."""
        late = self._entered.late
        told = [outlet.shortfall for outlet in self._outlets]
        told.append(None if self._unwritten is None else f"events: {EVENTS_NAME}: {self._unwritten}")
        told.append(f"events: {late} slot(s) came too late to count (events.look_ahead)" if late else None)
        return tuple(line for line in told if line is not None)

    @property
    def _entered(self) -> EventTracker:
        if self._tracker is None:
            raise RuntimeError("the events were not entered")
        return self._tracker

    async def _watch(self) -> None:
        """End an event of which nothing was heard for too long: a live source may stay away for hours."""
        while True:
            await asyncio.sleep(self._longest_silence_s / 4)
            if time.monotonic() - self._heard_at > self._longest_silence_s:
                self._entered.end("gap")

    def _make_outlets(self) -> list[Outlet]:
        config, outlets = self._config, []
        if (hook := config.webhook) is not None:
            sink = WebhookSink(hook)
            outlets.append(Outlet(sink, queue_size=config.queue_size, retries=hook.retries, retry_s=hook.retry_s))
        if config.mqtt is not None:
            broker = MqttSink(config.mqtt, self._stream)
            outlets.append(Outlet(broker, queue_size=config.queue_size, retries=None, retry_s=_MQTT_RETRY_S))
        return outlets

    def _begin(self) -> tuple[str, list[Event]]:
        if self._file is not None:
            try:
                return self._file.go_on() if self._live else (self._file.begin_anew(), [])
            except OSError as error:
                self._note(error)
        return new_run_id(), []

    def _tell(self, notice: Notice) -> None:
        event = notice.event
        log.info("Event %s %s: %s from %.2f s", event.id, event.state, event.action, event.start_s)
        if self._file is not None:
            try:
                event = self._write(self._file, notice)
            except OSError as error:
                self._note(error)
        for outlet in self._outlets:
            outlet.offer(Notice(event, notice.jpeg))

    def _write(self, file: EventFile, notice: Notice) -> Event:
        event = notice.event
        if notice.jpeg is not None:
            if event.state != "ended":  # then it is written already
                file.save_image(event.id, notice.jpeg)
            event = event.model_copy(update={"image": image_name(event.id)})
        file.write(event)
        return event

    def _note(self, error: OSError) -> None:
        """A run goes on without its events; that they are not all there is told at its end."""
        if self._unwritten is None:
            log.warning("events: %s: %s", EVENTS_NAME, error.strerror)
        self._unwritten = error.strerror or type(error).__name__


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _slot_s(config: PipelineConfig) -> float | None:
    """Time from one slot to the next; None if the frames are taken as they come."""
    return None if config.grid_fps is None else config.slot_frames * config.keyframe_interval / config.grid_fps
