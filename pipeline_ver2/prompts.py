"""Slot to chat messages and JSON schema; reply to checked answer. Both callers of Stage 2 use these functions.

The default text, the image size and the JPEG encoding are frozen by a golden test: the embedded answerer is
trained on exactly them.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import jsonschema
import numpy as np
from numpy.typing import NDArray
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from pipeline_ver2.config import PipelineConfig
from pipeline_ver2.errors import (
    AnswerError,
    BadReply,
    ConfigError,
    DeadlineShed,
    EngineFailed,
    QueueFull,
    RequestError,
    StageError,
    StageTimeout,
)
from pipeline_ver2.main import resize
from pipeline_ver2.wire import Detection

NOBODY = "none"
SYSTEM_PROMPT = "You check the findings of an action detector against video frames. Answer with one JSON object only."
QUESTION = (
    "Detector findings: {findings}. They may be wrong or incomplete; trust the frames.\n"
    "Which action do the frames show? Choose one of: {labels}, or none if nobody is seen. "
    "If several people act, choose the most notable action."
)
DESCRIPTION_LIMIT = 200
MAX_SENDS = 2

_MIN_SIDE_PX = 64
_MAX_ASPECT = 50
_MAX_PERSONS = 5
_MAX_LABELS = 3
# <|im_start|>, </think>, <image>, <start_of_turn>; [INST], [/INST], [IMG]
_MARKER = re.compile(r"<(?=[|/]?[A-Za-z_|])|\[(?=/?[A-Z_]+\])")
_THINKING = re.compile(r"^.*?</think>", re.DOTALL)
_FENCE = re.compile(r"^```(?:json)?\s*(.*?)\s*```$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SlotImage:
    """One image of a slot: encoded JPEG, its time in the source, and whether it fills up the slot."""

    jpeg: bytes
    time_s: float
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What Stage 2 is asked about one slot. `findings` holds Stage 1's detections, one tuple per image."""

    images: tuple[SlotImage, ...]
    findings: tuple[tuple[Detection, ...], ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A checked answer: the model's object with `confirmed` added, and the probability of its action's tokens."""

    body: dict[str, Any]
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Asked:
    """How asking went: the answer, or the last problem after the allowed sends; the last raw text either way."""

    answer: Answer | None
    problem: AnswerError | StageError | RequestError | None
    raw_text: str | None
    finish_reason: str | None
    usage: dict[str, Any] | None
    attempts: int


Send = Callable[[dict[str, Any], int], Awaitable[Mapping[str, Any]]]


def encode_image(rgb: NDArray[np.uint8], *, max_px: int, quality: int) -> bytes:
    """Encode a frame for Stage 2.

    Args:
        rgb: `(H, W, 3)` uint8 RGB, the upright source frame.
        max_px: Most pixels of the encoded image; larger frames are scaled down, keeping their aspect.
        quality: JPEG quality, 1..100.

    Returns:
        JPEG bytes. Frames narrower than 64 px a side, or longer than 50:1, are padded with black at right and below.
    """
    height, width = rgb.shape[:2]
    scale = math.sqrt(max_px / (height * width))
    if scale < 1:
        height, width = max(1, int(height * scale)), max(1, int(width * scale))
        rgb = resize(rgb, (height, width))
    side = max(_MIN_SIDE_PX, math.ceil(max(height, width) / _MAX_ASPECT))
    below, right = max(0, side - height), max(0, side - width)
    if below or right:
        rgb = np.pad(rgb, ((0, below), (0, right), (0, 0)))
    bgr = cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)
    _, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return encoded.tobytes()


def neutralise(text: str) -> str:
    """User text with chat and image markers broken up, so that no tokenizer reads them as such."""
    return _MARKER.sub(lambda match: match.group() + " ", text)


def neutralised(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A JSON value with every text in it neutralised, keys excepted."""
    if isinstance(value, str):
        return neutralise(value)
    if isinstance(value, list):
        return [neutralised(item) for item in value]
    if isinstance(value, dict):
        return {key: neutralised(item) for key, item in value.items()}
    return value


def describe_findings(findings: Sequence[Sequence[Detection]]) -> str:
    """Stage 1's findings as the prompt words them: `frame 1: walk 0.83/run 0.31, stand 0.52; frame 2: nobody`."""
    return "; ".join(f"frame {number}: {_persons(found)}" for number, found in enumerate(findings, start=1))


def answer_schema(labels: Sequence[str], settings: PipelineConfig) -> dict[str, Any]:
    """The JSON schema of an answer: the configured one, else action (one of `labels`, or none) and description."""
    if settings.answer_schema is not None:
        return settings.answer_schema
    return {
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": [*labels, NOBODY]},
            "description": {"type": "string", "maxLength": DESCRIPTION_LIMIT},
        },
        "required": ["action", "description"],
        "additionalProperties": False,
    }


def check_settings(settings: PipelineConfig) -> None:
    """Check a user's prompt and schema at start.

    Raises:
        ConfigError: `pipeline.prompt` is blank, or `pipeline.answer_schema` is no valid JSON schema of an object.
    """
    if settings.prompt is not None and not settings.prompt.strip():
        raise ConfigError("pipeline.prompt: must not be blank")
    if settings.answer_schema is None:
        return
    try:
        check_schema(settings.answer_schema, "pipeline.answer_schema")
    except RequestError as error:
        raise ConfigError(str(error)) from error
    if settings.answer_schema.get("type") != "object":
        raise ConfigError('pipeline.answer_schema: must have "type": "object"')


def check_schema(schema: Mapping[str, Any], name: str) -> None:
    """Check that answers can be validated against a schema safely: nothing fetched, no check without a time bound.

    Raises:
        RequestError: It is no JSON schema, refers to places outside itself, or has regular expressions; the message
            begins with `name`.
    """
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError) as error:
        raise RequestError(f"{name}: {getattr(error, 'message', 'is nested too deeply')}") from error
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    pending: list[object] = [schema]
    while pending:
        node = pending.pop()
        pending += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        if not isinstance(node, dict):
            continue
        if isinstance(node.get("pattern"), str) or isinstance(node.get("patternProperties"), dict):
            raise RequestError(f"{name}: regular expressions are not supported, matching them can take for ever")
        reference = node.get("$ref")
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except Unresolvable as error:
                raise RequestError(f"{name}: $ref {reference!r} is not in the schema itself") from error


def build_messages(question: Question, settings: PipelineConfig) -> list[dict[str, Any]]:
    """The chat messages for a slot: before each image which it is and when; then the findings and the question."""
    content: list[dict[str, Any]] = []
    for number, image in enumerate(question.images, start=1):
        again = f", same as frame {number - 1}" if image.repeated else ""
        content.append({"type": "text", "text": f"Frame {number}, t={image.time_s:.2f} s{again}"})
        url = f"data:image/jpeg;base64,{base64.b64encode(image.jpeg).decode()}"
        content.append({"type": "image_url", "image_url": {"url": url}})
    wanted = QUESTION if settings.prompt is None else neutralise(settings.prompt)
    text = wanted.replace("{findings}", describe_findings(question.findings))
    text = text.replace("{labels}", ", ".join(neutralise(label) for label in question.labels))
    content.append({"type": "text", "text": text})
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": content}]


async def ask(question: Question, settings: PipelineConfig, *, model: str, max_tokens: int, send: Send) -> Asked:
    """Ask Stage 2 about a slot, with at most `MAX_SENDS` sends to an engine in all.

    Args:
        question: What is asked.
        settings: Prompt and schema.
        model: Name of the model in the request.
        max_tokens: Bound of the answer.
        send: Sends one body and returns the chat completion. Its second argument numbers the variant of the body:
            1 greedy, 2 sampled. The same variant is sent again after a lost engine, the other after a bad answer.

    Raises:
        StageUnreachable: As `send` raised it.
        StageError, RequestError: As `send` raised them when nothing was sent before: the stage refused the request.
    """
    variant = 1
    problem: AnswerError | StageError | RequestError | None = None
    raw: str | None = None
    reason: str | None = None
    for attempt in range(1, MAX_SENDS + 1):
        body = build_request(question, settings, model=model, max_tokens=max_tokens, send=variant)
        try:
            reply = await send(body, variant)
            raw, reason = reply_text(reply)
            answer = read_answer(reply, question, settings)
        except AnswerError as error:
            problem, variant = error, 2
        except (EngineFailed, StageTimeout, BadReply) as error:
            problem = error
        except (QueueFull, DeadlineShed, RequestError) as error:
            if attempt == 1:
                raise
            sends = attempt if isinstance(error, RequestError) else attempt - 1
            return Asked(None, error, raw, reason, None, sends)
        else:
            usage = reply.get("usage")
            return Asked(answer, None, raw, reason, usage if isinstance(usage, dict) else None, attempt)
    return Asked(None, problem, raw, reason, None, MAX_SENDS)


def build_request(
    question: Question, settings: PipelineConfig, *, model: str, max_tokens: int, send: int
) -> dict[str, Any]:
    """The body for `/v1/chat/completions`. The first send is greedy, the second (`send=2`) samples."""
    sampling = {"temperature": 0.0} if send == 1 else {"temperature": 0.7, "top_p": 0.8, "seed": send}
    schema = answer_schema(question.labels, settings)
    return {
        "model": model,
        "messages": build_messages(question, settings),
        "max_tokens": max_tokens,
        "logprobs": True,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
        "chat_template_kwargs": {"enable_thinking": False},
        **sampling,
    }


def read_answer(reply: Mapping[str, Any], question: Question, settings: PipelineConfig) -> Answer:
    """Check a chat completion and take the answer out of it.

    Args:
        reply: The JSON body of `/v1/chat/completions`.
        question: What was asked; its findings decide `confirmed`.
        settings: Names the schema the answer must fit.

    Raises:
        AnswerError: The reply is no chat completion, did not end with `stop`, or its text does not fit the schema.
    """
    choice = _first_choice(reply)
    content = choice["message"].get("content")
    raw = content if isinstance(content, str) else ""
    if choice.get("finish_reason") != "stop":
        raise AnswerError(f"finish_reason is {choice.get('finish_reason')!r}, not 'stop'", raw)
    body = _parse(raw)
    # An empty registry: nothing outside the schema is ever fetched.
    validator = jsonschema.Draft202012Validator(answer_schema(question.labels, settings), registry=Registry())
    problem = jsonschema.exceptions.best_match(validator.iter_errors(body))
    if problem is not None:
        where = ".".join(str(part) for part in problem.absolute_path) or "the answer"
        raise AnswerError(f"{where}: {problem.message[:300]}", raw)
    action = body.get("action")
    body["confirmed"] = _confirmed(action, question.findings)
    return Answer(body, _confidence(choice, raw, action))


def reply_text(reply: Mapping[str, Any]) -> tuple[str, str | None]:
    """`(raw text, finish_reason)` of a chat completion.

    Raises:
        AnswerError: The body is no chat completion.
    """
    choice = _first_choice(reply)
    content, reason = choice["message"].get("content"), choice.get("finish_reason")
    return content if isinstance(content, str) else "", reason if isinstance(reason, str) else None


def _persons(found: Sequence[Detection]) -> str:
    if not found:
        return "nobody"
    best = sorted(found, key=lambda person: -max((label.score for label in person.labels), default=0))
    return ", ".join(_labels(person) for person in best[:_MAX_PERSONS])


def _labels(person: Detection) -> str:
    best = sorted(person.labels, key=lambda label: -label.score)[:_MAX_LABELS]
    return "/".join(f"{neutralise(label.name)} {label.score:.2f}" for label in best)


def _first_choice(reply: Mapping[str, Any]) -> dict[str, Any]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise AnswerError("the reply has no choices")
    if not isinstance(choices[0].get("message"), dict):
        raise AnswerError("the reply's first choice has no message")
    return choices[0]


def _parse(raw: str) -> dict[str, Any]:
    """The JSON object in a reply that may be wrapped in thinking, a bare closing tag, or a code fence."""
    text = _THINKING.sub("", raw).strip()
    fenced = _FENCE.match(text)
    try:
        body = json.loads(fenced.group(1) if fenced else text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise AnswerError(f"the answer is not valid JSON: {error}", raw) from error
    if not isinstance(body, dict):
        raise AnswerError("the answer is not a JSON object", raw)
    return body


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _confirmed(action: object, findings: Sequence[Sequence[Detection]]) -> bool | None:
    names = {label.name for found in findings for person in found for label in person.labels}
    return action in names if names else None


def _confidence(choice: Mapping[str, Any], raw: str, action: object) -> float | None:
    """Probability of the tokens that spell the action's value, or None without log-probabilities."""
    tokens = (choice.get("logprobs") or {}).get("content")
    found = re.search(rf'"action"\s*:\s*"({re.escape(str(action))})"', raw)
    if not isinstance(tokens, list) or found is None:
        return None
    start, end = (len(raw[:index].encode()) for index in found.span(1))
    position, total = 0, 0.0
    for token in tokens:
        try:
            size, logprob = _token_size(token), float(token["logprob"])
        except (KeyError, TypeError, ValueError):
            return None
        if position < end and position + size > start:
            total += logprob
        position += size
    return min(1.0, math.exp(total)) if position >= end and math.isfinite(total) else None


def _token_size(token: Mapping[str, Any]) -> int:
    spelled = token.get("bytes")
    return len(spelled) if isinstance(spelled, list) else len(token["token"].encode())
