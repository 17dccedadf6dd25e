"""Both stages as a run finds them, and what a run's results belong to."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass

from pipeline_ver2.config import Config
from pipeline_ver2.errors import ConfigError
from pipeline_ver2.job import Job
from pipeline_ver2.results import Header, fingerprint, sha256_of
from pipeline_ver2.stage_clients import AnswererInfo, DetectorInfo, Stage1Client, Stage2Client

log = logging.getLogger("pipeline_ver2.realtime_pipeline")


@dataclass(frozen=True, slots=True)
class Stages:
    """Both clients, and what each stage says of its model."""

    stage1: Stage1Client
    stage2: Stage2Client
    detector: DetectorInfo
    answerer: AnswererInfo


async def meet_stages(stack: AsyncExitStack, config: Config, job: Job) -> Stages:
    """Open both clients for as long as `stack` lasts, and ask the stages who they are.

    Raises:
        StageError: A stage is away or answers nonsense.
        ConfigError: The model takes other clips than are configured.
    """
    detector_client = Stage1Client(config.stage1, retry_for_s=config.pipeline.retry_for_s, trace=job.trace)
    stage1 = await stack.enter_async_context(detector_client)
    stage2 = await stack.enter_async_context(Stage2Client(config.stage2, config.pipeline, trace=job.trace))
    detector, answerer = await stage1.describe(), await stage2.describe()
    if detector.clip_length != config.stage1.clip_length:
        raise ConfigError(
            f"stage1.clip_length: is {config.stage1.clip_length}, but the model takes {detector.clip_length} frames"
        )
    log.info("Stage 1 daemon active: %s (%s) at %s", detector.name, detector.engine, config.stage1.base_url)
    log.info("Stage 2 daemon active: %s (%s) at %s", answerer.name, answerer.engine, config.stage2.base_url)
    return Stages(stage1, stage2, detector, answerer)


async def header_of(job: Job, config: Config, stages: Stages) -> Header:
    """What the results of a run belong to."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(_make_header, job, config, stages, stop)
    finally:
        stop.set()


def _make_header(job: Job, config: Config, stages: Stages, stop: threading.Event) -> Header:
    settings = {
        "pipeline": config.pipeline.model_dump(exclude={"queue_size", "stage2_window", "retry_for_s", "overlay"}),
        "clip": config.stage1.model_dump(include={"clip_length", "sampling_rate", "threshold", "nms_iou"}),
        "detector": stages.detector.as_dict(),
        "answerer": [stages.answerer.name, stages.answerer.engine == "emulated", config.stage2.max_tokens],
    }
    # A live source has no content to tell it by, only its name.
    source = sha256_of(job.source, stop) if job.live is None else hashlib.sha256(job.name.encode()).hexdigest()
    run = None if job.live is None else job.job_id
    return Header(source_sha256=source, fingerprint=fingerprint(settings), run=run)
