"""Requests of `/v1/chat/completions`: checked, with their images taken out; and the replies, put together.

What is checked here holds for every engine: images come as `data:` URLs and are looked at before an engine sees
them, text cannot smuggle chat or image markers, one answer per request, every length bounded.
"""

from __future__ import annotations

import binascii
import io
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pybase64
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline_ver2.errors import RequestError
from pipeline_ver2.prompts import neutralise, neutralised
from serving.workers.chat_schema import check_json_schema

MAX_IMAGES = 16
MAX_MESSAGES = 64
MAX_IMAGE_PX = 50_000_000
MAX_REQUEST_PX = 100_000_000
MAX_ASPECT = 200
MAX_TOKENS = 32_768

_IMAGE_FORMATS = ("JPEG", "PNG", "WEBP")
_DATA_URL = re.compile(r"data:image/(?:jpeg|jpg|png|webp);base64,", re.IGNORECASE)
# Fields that change the answer in a way which the engines of this process cannot follow, and their harmless values.
_LOCAL_REFUSED: Mapping[str, tuple[object, ...]] = {
    "tools": (None, []),
    "functions": (None, []),
    "stop": (None, []),
    "logit_bias": (None, {}),
    "top_logprobs": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
}


class _Open(BaseModel):
    """Base of the request models: fields not named here are kept for engines that know them."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False, protected_namespaces=())


class _ImageUrl(_Open):
    url: str


class _Part(_Open):
    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: _ImageUrl | None = None


class _Message(_Open):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part] | None = None


class _JsonSchema(_Open):
    schema_: dict[str, Any] = Field(alias="schema")


class _ResponseFormat(_Open):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None


class _StreamOptions(_Open):
    include_usage: bool = False


class _Body(_Open):
    model: str
    messages: list[_Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    n: int | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    logprobs: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    response_format: _ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """A checked request.

    `messages` are in the form that chat templates read: content is a list of `{"type": "text", "text"}` and
    `{"type": "image"}`; `images` are the encoded pictures in the order of their places. `body` is the same request
    for a server that speaks OpenAI.
    """

    model: str
    messages: tuple[dict[str, Any], ...]
    images: tuple[bytes, ...]
    body: Mapping[str, Any]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: bool = False
    schema: Mapping[str, Any] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    include_usage: bool = False


def parse_chat(body: object, *, default_max_tokens: int) -> Chat:
    """Check a request body and take its images out.

    Args:
        body: The JSON of the request.
        default_max_tokens: Bound of the answer when the request names none.

    Raises:
        RequestError: A field that does not fit, an image that cannot be used; the message names it.
    """
    if not isinstance(body, dict):
        raise RequestError("the request must be a JSON object")
    try:
        checked = _Body.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RequestError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
    if checked.n not in (None, 1):
        raise RequestError(f"n: this server gives one answer per request, not {checked.n}")
    max_tokens = checked.max_completion_tokens or checked.max_tokens or default_max_tokens
    contents = [_content(message, f"messages.{at}") for at, message in enumerate(checked.messages)]
    images = tuple(part["image"] for content in contents for part in content if part["type"] == "image")
    if len(images) > MAX_IMAGES:
        raise RequestError(f"messages: {len(images)} images, at most {MAX_IMAGES} are taken")
    check_images(images, [f"image {at}" for at in range(1, len(images) + 1)], "messages")
    return Chat(
        model=checked.model,
        messages=tuple(_for_template(m, c) for m, c in zip(checked.messages, contents, strict=True)),
        images=images,
        body=_passed_on(body, checked, max_tokens),
        max_tokens=max_tokens,
        temperature=1.0 if checked.temperature is None else checked.temperature,
        top_p=1.0 if checked.top_p is None else checked.top_p,
        seed=checked.seed,
        logprobs=bool(checked.logprobs),
        schema=_schema(checked.response_format),
        template_kwargs=checked.chat_template_kwargs or {},
        stream=bool(checked.stream),
        include_usage=checked.stream_options is not None and checked.stream_options.include_usage,
    )


def refuse_unsupported(chat: Chat, engine: str) -> None:
    """Refuse what an engine of this process would have to ignore.

    Raises:
        RequestError: The request asks for tools, stop texts, penalties or alternatives.
    """
    for name, harmless in _LOCAL_REFUSED.items():
        if chat.body.get(name) not in harmless:
            raise RequestError(f"{name}: not supported by the {engine} engine")


def check_images(images: Sequence[bytes], names: Sequence[str], field: str) -> None:
    """Look at the heads of all images of a request, without decoding their pixels.

    Raises:
        RequestError: One cannot be used, or they have too many pixels together; the message names it, or the field.
    """
    pixels = 0
    for image, name in zip(images, names, strict=True):
        pixels += check_image(image, name)
        if pixels > MAX_REQUEST_PX:
            raise RequestError(f"{field}: {pixels} pixels up to {name}, at most {MAX_REQUEST_PX} are taken together")


def check_image(data: bytes, name: str) -> int:
    """Look at an encoded image's head, without decoding its pixels.

    Returns:
        How many pixels it has.

    Raises:
        RequestError: It is no JPEG, PNG or WebP, has too many pixels, or is too long and thin for any model.
    """
    with _opened(data, name) as image:
        width, height = image.size
    if width * height > MAX_IMAGE_PX:
        raise RequestError(f"{name}: {width}x{height} is more than {MAX_IMAGE_PX} pixels")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise RequestError(f"{name}: {width}x{height} is longer than {MAX_ASPECT}:1")
    return width * height


def decode_image(data: bytes, name: str) -> NDArray[np.uint8]:
    """Decode an image that `check_image` has passed.

    Returns:
        `(H, W, 3)` uint8 RGB, as stored: orientation tags are not applied.

    Raises:
        RequestError: The pixels are damaged or cut off.
    """
    with _opened(data, name) as image:
        try:
            return np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError) as error:
            raise RequestError(f"{name}: the image is damaged: {error}") from error


def decode_base64(text: str, name: str) -> bytes:
    """Bytes of a base64 text.

    Raises:
        RequestError: The text is not base64.
    """
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{name}: not valid base64: {error}") from error


def _opened(data: bytes, name: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=_IMAGE_FORMATS)
    except UnidentifiedImageError as error:
        raise RequestError(f"{name}: not a JPEG, PNG or WebP image") from error
    except (OSError, ValueError, SyntaxError, Warning, Image.DecompressionBombError) as error:
        raise RequestError(f"{name}: the image cannot be read: {error}") from error


def _content(message: _Message, name: str) -> list[dict[str, Any]]:
    """The parts of a message: `{"type": "text", "text"}` with markers broken up, and `{"type": "image", "image"}`."""
    if message.content is None:
        return []
    if isinstance(message.content, str):
        return [{"type": "text", "text": neutralise(message.content)}]
    return [_part(part, f"{name}.content.{at}") for at, part in enumerate(message.content)]


def _part(part: _Part, name: str) -> dict[str, Any]:
    if part.type == "text":
        if part.text is None:
            raise RequestError(f"{name}: a text part needs text")
        return {"type": "text", "text": neutralise(part.text)}
    if part.image_url is None:
        raise RequestError(f"{name}: an image_url part needs image_url")
    head = _DATA_URL.match(part.image_url.url)
    if head is None:
        shown = part.image_url.url[:40]
        raise RequestError(
            f"{name}: images must be data:image/jpeg, png or webp URLs in base64; this server fetches nothing, "
            f"got {shown!r}"
        )
    return {"type": "image", "image": decode_base64(part.image_url.url[head.end() :], name)}


def _for_template(message: _Message, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    parts = [{"type": "image"} if part["type"] == "image" else dict(part) for part in content]
    if isinstance(message.content, list):
        return {"role": role, "content": parts}
    return {"role": role, "content": parts[0]["text"] if parts else ""}


def _passed_on(raw: Mapping[str, Any], checked: _Body, max_tokens: int) -> dict[str, Any]:
    """The body for another OpenAI server: the caller's, with its text made harmless and its length bounded."""
    messages = []
    for message in checked.messages:
        passed = neutralised(message.model_dump(by_alias=True, exclude_unset=True, exclude={"content"}))
        if isinstance(message.content, str):
            passed["content"] = neutralise(message.content)
        elif message.content is not None:
            passed["content"] = [_passed_part(part) for part in message.content]
        messages.append(passed)
    replaced = {"n", "max_completion_tokens", "messages", "response_format"}
    try:
        kept = neutralised({key: value for key, value in raw.items() if key not in replaced})
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error
    schema = {"response_format": raw["response_format"]} if "response_format" in raw else {}
    return {**kept, **schema, "messages": messages, "max_tokens": max_tokens}


def _passed_part(part: _Part) -> dict[str, Any]:
    passed = part.model_dump(exclude_unset=True)
    return passed if part.text is None else {**passed, "text": neutralise(part.text)}


def _schema(wanted: _ResponseFormat | None) -> Mapping[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.json_schema is None:
        raise RequestError("response_format.json_schema: missing")
    check_json_schema(wanted.json_schema.schema_, "response_format.json_schema.schema")
    return wanted.json_schema.schema_


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token as log-probabilities are reported: its bytes and the logarithm of its probability."""

    spelled: bytes
    logprob: float

    def described(self) -> dict[str, Any]:
        """The OpenAI form."""
        text = self.spelled.decode("utf-8", "replace")
        return {"token": text, "logprob": self.logprob, "bytes": list(self.spelled), "top_logprobs": []}


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step of generation adds to the answer; `text` may be empty inside a character of several bytes."""

    text: str
    token: Token | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How generation ended."""

    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int

    def usage(self) -> dict[str, int]:
        """The OpenAI form."""
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }


@dataclass(frozen=True, slots=True)
class ReplyWriter:
    """Puts the pieces of one answer into OpenAI's forms: one completion, or chunks."""

    chat: Chat
    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, pieces: Sequence[Piece], end: End) -> dict[str, Any]:
        """The whole answer as a `chat.completion`."""
        message = {"role": "assistant", "content": "".join(piece.text for piece in pieces), "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(pieces),
            "finish_reason": end.finish_reason,
        }
        return {**self._head("chat.completion"), "choices": [choice], "usage": end.usage()}

    def opening(self) -> dict[str, Any]:
        """The first chunk: who speaks."""
        return self._chunk({"role": "assistant", "content": ""}, None, None)

    def delta(self, piece: Piece) -> dict[str, Any]:
        """A chunk with one piece."""
        return self._chunk({"content": piece.text}, self._logprobs([piece]), None)

    def closing(self, end: End) -> list[dict[str, Any]]:
        """The last chunks: why it ended and, if asked for, the usage."""
        last = [self._chunk({}, None, end.finish_reason)]
        if self.chat.include_usage:
            last.append({**self._head("chat.completion.chunk"), "choices": [], "usage": end.usage()})
        return last

    def _chunk(self, delta: dict[str, Any], logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        tokens = [piece.token.described() for piece in pieces if piece.token is not None]
        return {"content": tokens, "refusal": None} if self.chat.logprobs and tokens else None
