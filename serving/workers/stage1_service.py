"""What the Stage 1 daemon owns: detector, queue, metrics, and the memory of answered requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter

from pipeline_ver2.config import Config
from pipeline_ver2.errors import EngineFailed, RequestError, StageUnreachable, ZroactError
from pipeline_ver2.wire import DetectClip, DetectReply, DetectRequest, DetectResult
from serving.workers.daemon import RequestContext, give_up
from serving.workers.postprocess import ClipOutput, suppress
from serving.workers.stage1_engine import Engine, ModelInfo, candidates_of
from serving.workers.stage1_frames import DecodeBudget, DecodedClip, decode_clip
from serving.workers.stage1_model import load_detector
from serving.workers.stage1_oip import InferRequest, check_count
from serving.workers.stage1_queue import BatchQueue, Timed
from serving.workers.stage1_readiness import Readiness
from serving.workers.stage1_replay import Replays

logger = logging.getLogger(__name__)

_LOADING_RETRY_S = 1.0
_FEW_CANDIDATES = 32


class Stage1Service:
    """One detector behind one bounded queue that joins requests."""

    def __init__(self, config: Config, registry: CollectorRegistry) -> None:
        self.config = config.stage1
        self.queue = BatchQueue(self.config.max_batch, self.config.max_queue, self.config.max_wait_ms / 1e3, registry)
        self._roots = config.paths.readable_roots
        self._detector: Engine | None = None
        self._readiness = Readiness(self.queue, lambda: self.detector)
        self._answered = Replays[Timed[list[ClipOutput]]](2 * self.config.max_queue)
        self._told = Replays[tuple[DetectReply, Timed[list[ClipOutput]] | None]](2 * self.config.max_queue)
        self._clips = Counter("zroact_stage1_clips", "Clips by what came of them.", ["state"], registry=registry)
        self._rejected = Counter(
            "zroact_stage1_rejected", "Requests not answered, by reason.", ["reason"], registry=registry
        )
        self._nonfinite = Counter(
            "zroact_stage1_nonfinite_dropped", "Candidates dropped for a NaN or infinity.", registry=registry
        )
        self._cut = Counter(
            "zroact_stage1_candidates_cut", "Candidates over the bound before suppression.", registry=registry
        )

    @property
    def detector(self) -> Engine:
        """The detector, loaded and warm.

        Raises:
            StageUnreachable: Not yet.
        """
        if self._detector is None:
            raise StageUnreachable("the model is still loading", retry_after_s=_LOADING_RETRY_S)
        return self._detector

    @property
    def loaded(self) -> ModelInfo | None:
        """What the detector is; None while it loads."""
        return None if self._detector is None else self._detector.info

    async def ready(self) -> None:
        """Return when the detector is loaded and does its work.

        Raises:
            StageUnreachable: It is not, or does not.
        """
        _ = self.detector
        await self._readiness.check()

    @contextlib.asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """Load in the background, so that health is answered meanwhile; release everything at the end."""
        loading = asyncio.create_task(self._load(app))
        try:
            yield
        finally:
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loading
            await self._readiness.close()
            if self._detector is not None:
                self._detector.close()
            self.queue.close()

    @contextlib.contextmanager
    def counting_rejections(self) -> Iterator[None]:
        """Count requests that end in an error of the tree, by its code."""
        try:
            yield
        except ZroactError as error:
            self._rejected.labels(error.code).inc()
            raise

    async def infer(
        self, request: InferRequest, context: RequestContext, body: bytes | memoryview
    ) -> Timed[list[ClipOutput]]:
        """Run a batch, or join or replay one of the same key and the same body.

        Raises:
            QueueFull, DeadlineShed, EngineFailed: See there.
        """

        async def work() -> Timed[list[ClipOutput]]:
            return await self._detect(list(request.clips), request.threshold, request.nms_iou, context)

        return await self._answered.run(context.idempotency_key, body, work)

    async def detect(
        self, request: DetectRequest, context: RequestContext, body: bytes
    ) -> tuple[DetectReply, Timed[list[ClipOutput]] | None]:
        """Decode and run the clips of people; a bad clip fails alone. No times if the detector was not asked.

        As `infer`, it joins or replays a request of the same key and the same body.

        Raises:
            RequestError: Too many clips.
            QueueFull, DeadlineShed, EngineFailed: See there.
        """
        check_count(len(request.clips), self.config)
        return await self._told.run(context.idempotency_key, body, lambda: self._detect_pictures(request, context))

    async def _detect_pictures(
        self, request: DetectRequest, context: RequestContext
    ) -> tuple[DetectReply, Timed[list[ClipOutput]] | None]:
        threshold = self.config.threshold if request.threshold is None else request.threshold
        budget = DecodeBudget()
        try:
            decoded = await asyncio.to_thread(self._decode, request.clips, budget)
        finally:
            budget.call_off()  # a client that has gone keeps no thread busy
        good = [clip.frames for clip in decoded if isinstance(clip, DecodedClip)]
        timed = None
        if good:
            timed = await self._detect(good, threshold, self.config.nms_iou, context)
        outputs = iter(timed.value if timed else ())
        run_s = timed.run_s if timed else 0
        results = [
            self._result(clip, found, next(outputs), threshold, run_s)
            if isinstance(found, DecodedClip)
            else self._refused(clip, found)
            for clip, found in zip(request.clips, decoded, strict=True)
        ]
        return DetectReply(results=tuple(results)), timed

    async def _load(self, app: FastAPI) -> None:
        try:
            detector = await self.queue.call(lambda: load_detector(self.config))
        except ZroactError as error:
            give_up(app, error)
        except Exception as error:
            logger.exception("loading the detector failed")
            give_up(app, EngineFailed(f"loading the detector failed: {error!r}"))
        else:
            self.queue.serve(detector.run, chunk=detector.info.chunk)
            self._detector = detector
            logger.info("detector ready: %s", json.dumps(described(detector.info)))

    async def _detect(
        self, clips: Sequence[NDArray[np.uint8]], threshold: float, nms_iou: float, context: RequestContext
    ) -> Timed[list[ClipOutput]]:
        info = self.detector.info
        with self._readiness.watching():
            raw = await self.queue.detect(clips, context.deadline_at, client=context.client)
            candidates = candidates_of(raw.value, info, threshold)
        # Suppressing many would hold up the event loop, a thread's hop costs more than suppressing few.
        few = len(candidates) <= _FEW_CANDIDATES
        outputs = suppress(candidates, nms_iou) if few else await asyncio.to_thread(suppress, candidates, nms_iou)
        for output in outputs:
            self._clips.labels("ok" if output.problem is None else "failed").inc()
            self._nonfinite.inc(output.nonfinite)
            self._cut.inc(output.cut)
        return Timed(outputs, raw.queue_s, raw.run_s)

    def _decode(self, clips: Sequence[DetectClip], budget: DecodeBudget) -> list[DecodedClip | RequestError]:
        info, roots = self.detector.info, self._roots
        decoded: list[DecodedClip | RequestError] = []
        for clip in clips:
            try:
                frames = decode_clip(clip, roots, budget, clip_length=info.clip_length, image_size=info.image_size)
                decoded.append(frames)
            except RequestError as error:
                decoded.append(error)
        return decoded

    def _refused(self, clip: DetectClip, error: RequestError) -> DetectResult:
        self._clips.labels("failed").inc()
        return DetectResult(clip_id=clip.clip_id, key_index=clip.key_index, state="failed", error=str(error))

    def _result(
        self, clip: DetectClip, decoded: DecodedClip, output: ClipOutput, threshold: float, run_s: float
    ) -> DetectResult:
        labels = self.detector.info.labels
        return DetectResult(
            clip_id=clip.clip_id,
            key_index=clip.key_index,
            state="ok" if output.problem is None else "failed",
            error=output.problem,
            detections=output.findings.detections(labels, threshold=threshold, size=decoded.size),
            inference_ms=run_s * 1e3,
        )


def described(info: ModelInfo) -> dict[str, Any]:
    """What a detector is, for the log and for `/health`."""
    told = {
        "provider": info.provider,
        "model": info.source,
        "labels": info.labels,
        "clip_length": info.clip_length,
        "image_size": info.image_size,
        "note": info.note,
    }
    return {**told, **info.details}
