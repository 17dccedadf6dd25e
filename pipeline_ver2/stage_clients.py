"""The clients of the two stages: the Open Inference Protocol to Stage 1, the OpenAI chat API to Stage 2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from pipeline_ver2 import wire
from pipeline_ver2.config import PipelineConfig, Stage1Config, Stage2Config
from pipeline_ver2.deadline import Deadline
from pipeline_ver2.detector_metadata import input_of, labels_of, parameters_of
from pipeline_ver2.errors import BadReply, EngineFailed, RequestError, StageError, StageTimeout, StageUnreachable
from pipeline_ver2.findings import ClipFindings, read_findings
from pipeline_ver2.prompts import MAX_SENDS, Asked, Question, ask
from pipeline_ver2.stage_http import Reply, StageClient, StageTimes
from pipeline_ver2.stage_probe import MODEL, MODEL_READY_PATH
from pipeline_ver2.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class DetectorInfo:
    """What Stage 1 says of its model. `image_size` is (height, width)."""

    name: str
    engine: str
    labels: tuple[str, ...]
    clip_length: int
    image_size: tuple[int, int]
    file: str | None
    note: str | None

    def as_dict(self) -> dict[str, Any]:
        """For the `models` of a result."""
        told = {"name": self.name, "engine": self.engine, "file": self.file, "note": self.note}
        return {**told, "labels": list(self.labels)}


@dataclass(frozen=True, slots=True)
class AnswererInfo:
    """What Stage 2 says of its model."""

    name: str
    engine: str
    note: str | None

    def as_dict(self) -> dict[str, Any]:
        """For the `models` of a result."""
        return {"name": self.name, "engine": self.engine, "note": self.note}


@dataclass(frozen=True, slots=True)
class BatchFindings:
    """One entry per clip of the batch, in its order: findings, or why the clip failed."""

    clips: tuple[ClipFindings | BadReply, ...]
    times: StageTimes


class Stage1Client(StageClient):
    """Speaks the Open Inference Protocol to the detector."""

    _describe_path = f"/v2/models/{MODEL}"

    def __init__(self, config: Stage1Config, *, retry_for_s: float, trace: TraceContext | None = None) -> None:
        super().__init__(
            "stage1",
            config.base_url,
            timeout_s=config.timeout_s,
            retry_for_s=retry_for_s,
            max_reply_mb=config.max_body_mb,
            trace=trace,
        )
        self._parameters = {"threshold": config.threshold, "nms_iou": config.nms_iou}
        self._config = config

    async def describe(self) -> DetectorInfo:
        """Ask for the model's metadata.

        Raises:
            StageError: The stage is away or answers nonsense.
            ConfigError: It leaves open what the configuration does not tell either, or they contradict each other.
        """
        reply = await self._waiting(lambda: self._request("GET", self._describe_path))
        content = reply.json()
        parameters = parameters_of(content)
        length, image_size = input_of(content, self._config)
        return DetectorInfo(
            name=str(content.get("name", MODEL)),
            engine=str(content.get("platform", "unknown")),
            labels=await asyncio.to_thread(labels_of, content, self._config),
            clip_length=length,
            image_size=image_size,
            file=parameters.get("model_file"),
            note=parameters.get("note"),
        )

    def _pack(self, clips: Sequence[NDArray[np.uint8]]) -> tuple[bytes, int]:
        parts, head_length = wire.pack_tensors({"clips": np.stack(clips)}, kind="inputs", parameters=self._parameters)
        return b"".join(parts), head_length

    async def _request(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """As every client's, but a refusal by a server whose model is not loaded is waiting.

        Triton answers 400 then, as it does to a request that is wrong.
        """
        try:
            return await super()._request(method, path, body=body, headers=headers)
        except RequestError as error:
            if path.startswith("/v2/") and await self._model_is_away():
                raise StageUnreachable(f"{error} (its model is not ready)") from error
            raise

    async def _model_is_away(self) -> bool:
        if self._session is None:
            return False
        try:
            async with self._session.get(f"{self._base_url}{MODEL_READY_PATH}") as reply:
                await reply.read()
                return reply.status in {400, 503}  # a server without this path may answer 404
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return False

    async def detect(
        self, clips: Sequence[NDArray[np.uint8]], *, key: str, deadline: Deadline | None = None
    ) -> BatchFindings:
        """Find the persons and actions at the last frame of each clip.

        Args:
            clips: Each `(T, H, W, 3)` uint8 RGB at the model's size.
            key: Idempotency key of the batch.
            deadline: Until when the findings are of use; None if there is no hurry.

        Raises:
            StageUnreachable, QueueFull: The stage stayed away for `retry_for_s`, or up to the deadline.
            StageError: The batch was sent twice and lost twice, or refused.
        """
        body, head_length = await asyncio.to_thread(self._pack, clips)
        headers = {
            wire.OIP_HEAD_LENGTH_HEADER: str(head_length),
            **wire.job_headers(key),
            "Content-Type": "application/octet-stream",
        }
        path = f"/v2/models/{MODEL}/infer"
        lost: StageError | None = None
        for _ in range(MAX_SENDS):
            try:
                async with self._sending(after_loss=isinstance(lost, EngineFailed), deadline=deadline):
                    reply = await self._post(path, body, headers, deadline)
                return BatchFindings(read_findings(reply.headers, reply.body, len(clips)), reply.times)
            except (EngineFailed, StageTimeout, BadReply) as error:
                lost = error
        raise lost or RuntimeError("unreachable: a batch is sent at least once")


class Stage2Client(StageClient):
    """Speaks the OpenAI chat API to the vision-language model."""

    _describe_path = "/v1/models"

    def __init__(self, config: Stage2Config, pipeline: PipelineConfig, *, trace: TraceContext | None = None) -> None:
        super().__init__(
            "stage2",
            config.base_url,
            timeout_s=config.timeout_s,
            retry_for_s=pipeline.retry_for_s,
            max_reply_mb=config.max_body_mb,
            trace=trace,
        )
        self._max_tokens = config.max_tokens
        self._settings = pipeline
        self._wanted = config.model

    async def describe(self) -> AnswererInfo:
        """The served model of `GET /v1/models`: the configured one if it is listed, else the first.

        Raises:
            StageError: The stage is away or lists no model.
        """
        reply = await self._waiting(lambda: self._request("GET", self._describe_path))
        entries = reply.json().get("data")
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
            raise BadReply("stage2: /v1/models lists no model")
        entry = next((entry for entry in entries if entry.get("id") == self._wanted), entries[0])
        return AnswererInfo(str(entry.get("id")), str(entry.get("engine", "unknown")), entry.get("note"))

    async def evaluate(
        self, question: Question, *, model: str, key: str, deadline: Deadline | None = None
    ) -> tuple[Asked, StageTimes | None]:
        """Ask about one slot; times are those of the last reply, None if there was none.

        Raises:
            StageUnreachable, QueueFull: The stage stayed away for `retry_for_s`, or up to the deadline.
            DeadlineShed: The scheduler refused the slot, or its deadline was over before it was sent.
            RequestError: The stage refused the request.
        """
        times: StageTimes | None = None
        lost = False

        async def send(body: dict[str, Any], variant: int) -> Mapping[str, Any]:
            nonlocal times, lost
            encoded = await asyncio.to_thread(lambda: json.dumps(body).encode())
            try:
                async with self._sending(after_loss=lost, deadline=deadline):
                    reply = await self.post_json(
                        "/v1/chat/completions", encoded, key=f"{key}/{variant}", deadline=deadline
                    )
            except EngineFailed:
                lost = True
                raise
            times = reply.times
            return reply.json()

        asked = await ask(question, self._settings, model=model, max_tokens=self._max_tokens, send=send)
        return asked, times
