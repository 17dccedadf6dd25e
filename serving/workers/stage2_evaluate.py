"""`POST /evaluate`: the people's way to ask about one slot, with the same words and checks as the orchestrator's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline_ver2.config import Config, PipelineConfig
from pipeline_ver2.errors import AnswerError, ConfigError, MediaPathError, RequestError
from pipeline_ver2.prompts import NOBODY, Asked, Question, SlotImage, ask, check_settings, encode_image
from pipeline_ver2.wire import EvaluateImage, EvaluateReply, EvaluateRequest
from serving.workers.chat import check_images, decode_base64, decode_image, parse_chat
from serving.workers.daemon import MEGABYTE, RequestContext
from serving.workers.stage2_service import Stage2Service


async def evaluate(
    request: EvaluateRequest, service: Stage2Service, config: Config, context: RequestContext
) -> tuple[EvaluateReply, float, float]:
    """Ask the engine about a slot, at most twice.

    Returns:
        `(reply, queue_s, run_s)`, the times of all sends together.

    Raises:
        RequestError: The request does not fit, a path cannot be read, no labels are known.
        AnswerError: No send brought a valid answer; the last raw text is in it.
        StageError: The engine is away, or the last send was lost.
    """
    settings = _settings(request, config.pipeline)
    labels = _labels(request, service.engine.labels)
    question = await asyncio.to_thread(_question, request, labels, config)
    queue_s = run_s = 0.0

    async def send(body: dict[str, Any], _variant: int) -> Mapping[str, Any]:
        nonlocal queue_s, run_s
        chat = await asyncio.to_thread(parse_chat, body, default_max_tokens=config.stage2.max_tokens)
        served = await service.complete(chat, context)
        queue_s, run_s = queue_s + served.queue_s, run_s + served.run_s
        return served.completion

    model = await service.engine.served_model()
    asked = await ask(question, settings, model=model, max_tokens=config.stage2.max_tokens, send=send)
    return _reply(request.slot_id, asked, queue_s, run_s), queue_s, run_s


def _settings(request: EvaluateRequest, pipeline: PipelineConfig) -> PipelineConfig:
    changes: dict[str, Any] = {}
    if request.prompt is not None:
        changes["prompt"] = request.prompt
    if request.schema_ is not None:
        changes["answer_schema"] = request.schema_
    settings = pipeline.model_copy(update=changes)
    try:
        check_settings(settings)
    except ConfigError as error:
        raise RequestError(str(error).replace("pipeline.answer_schema", "schema").replace("pipeline.", "")) from error
    return settings


def _labels(request: EvaluateRequest, known: Sequence[str] | None) -> tuple[str, ...]:
    """The actions the prompt names: the request's, else those of its schema or of the embedded model; and all found."""
    found = (label.name for image in request.detections for person in image for label in person.labels)
    if request.labels is not None:
        chosen: Sequence[str] = request.labels
    elif request.schema_ is not None:
        chosen = _enum_of(request.schema_)
    elif known is not None:
        chosen = known
    else:
        raise RequestError("labels: needed, as neither schema is given nor does the embedded demo model answer")
    return tuple(dict.fromkeys([*chosen, *found]))


def _enum_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    properties = schema.get("properties")
    action = properties.get("action") if isinstance(properties, dict) else None
    names = action.get("enum") if isinstance(action, dict) else None
    return tuple(name for name in names if name != NOBODY) if isinstance(names, list) else ()


def _question(request: EvaluateRequest, labels: tuple[str, ...], config: Config) -> Question:
    """Read, decode and encode the images as the orchestrator would. Blocks."""
    if request.detections and len(request.detections) != len(request.images):
        raise RequestError(f"detections: {len(request.detections)} lists for {len(request.images)} images")
    times = [image.time_s for image in request.images]
    if times != sorted(times):
        raise RequestError("images: their times must not descend")
    names = [f"images.{at}" for at in range(len(request.images))]
    pictures = _read(request.images, names, config)
    check_images(pictures, names, "images")
    images: list[SlotImage] = []
    for image, picture, name in zip(request.images, pictures, names, strict=True):
        jpeg = _encoded(picture, name, config.pipeline)
        repeated = bool(images) and images[-1].time_s == image.time_s and images[-1].jpeg == jpeg
        images.append(SlotImage(jpeg, image.time_s, repeated))
    return Question(tuple(images), request.detections or ((),) * len(images), labels)


def _encoded(data: bytes, name: str, settings: PipelineConfig) -> bytes:
    return encode_image(decode_image(data, name), max_px=settings.image_max_px, quality=settings.jpeg_quality)


def _read(images: Sequence[EvaluateImage], names: Sequence[str], config: Config) -> list[bytes]:
    """The encoded images; those in files may be as large as a body together."""
    pictures: list[bytes] = []
    left = int(config.stage2.max_body_mb * MEGABYTE)
    for image, name in zip(images, names, strict=True):
        pictures.append(_bytes_of(image, name, config, max(0, left)))
        left -= len(pictures[-1])
    return pictures


def _bytes_of(image: EvaluateImage, name: str, config: Config, limit: int) -> bytes:
    if (image.data is None) == (image.path is None):
        raise RequestError(f"{name}: needs either data or path")
    if image.path is None:
        return decode_base64(image.data or "", f"{name}.data")
    path = _allowed(Path(image.path), config.paths.readable_roots, f"{name}.path")
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise MediaPathError(f"{name}.path: {image.path}: {error.strerror}") from error
    if len(data) > limit:
        raise RequestError(f"{name}.path: with {image.path}, the images are over {config.stage2.max_body_mb:g} MB")
    return data


def _allowed(path: Path, roots: Sequence[Path], name: str) -> Path:
    """The real path, if it lies under a media root once links are followed."""
    try:
        real = path.resolve()
        if real.is_file() and any(real.is_relative_to(root.resolve()) for root in roots):
            return real
    except (OSError, ValueError, RuntimeError) as error:
        raise MediaPathError(f"{name}: cannot be used: {error}") from error
    # One message for what is missing and what is elsewhere: a stranger learns nothing about other folders.
    raise MediaPathError(f"{name}: {path} is no file under a media root")


def _reply(slot_id: str, asked: Asked, queue_s: float, run_s: float) -> EvaluateReply:
    if asked.answer is None:
        if isinstance(asked.problem, AnswerError) or asked.problem is None:
            raise AnswerError(f"no valid answer in {asked.attempts} sends: {asked.problem}", asked.raw_text)
        raise asked.problem
    return EvaluateReply(
        slot_id=slot_id,
        answer=asked.answer.body,
        confidence=asked.answer.confidence,
        finish_reason=asked.finish_reason or "",
        raw_text=asked.raw_text or "",
        usage=asked.usage,
        queue_wait_ms=queue_s * 1e3,
        inference_ms=run_s * 1e3,
        attempts=asked.attempts,
    )
