"""The emulated engine: fixed service times and made-up answers, but real decoding and checking of its input."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, ClassVar

import jsonschema
from referencing import Registry

from pipeline_ver2.config import Stage2Config
from pipeline_ver2.errors import RequestError
from pipeline_ver2.prompts import check_schema
from serving.workers.chat import Chat, End, Piece, decode_image
from serving.workers.stage2_engine import DEMO_LABELS, EngineName, LocalEngine, Watch

_PIECE_LENGTH = 4
_TEXT = "emulated answer"


class EmulatedEngine(LocalEngine):
    """Takes `service_s`, and `per_extra_s` more for each other request at work; both include decoding the input."""

    name: ClassVar[EngineName] = "emulated"

    def __init__(self, settings: Stage2Config) -> None:
        super().__init__(settings.model or "emulated", DEMO_LABELS if settings.model is None else None)
        self._times = settings.emulated
        self._running = 0

    async def pieces(self, chat: Chat, watch: Watch) -> AsyncGenerator[Piece | End, None]:
        """Decode, wait for the rest of the service time, then say the answer."""
        loop = asyncio.get_running_loop()
        done_at = loop.time() + self._times.service_s + self._times.per_extra_s * self._running
        self._running += 1
        try:
            text = await asyncio.to_thread(made_up_answer, chat)
            await asyncio.sleep(done_at - loop.time())
        finally:
            self._running -= 1
        self.was_alive()
        for item in _said(chat, text):
            yield item

    async def probe(self, chat: Chat) -> None:
        """Answer at once: a probe asks for one token, the service time is that of a whole answer."""
        await asyncio.to_thread(made_up_answer, chat)
        self.was_alive()


def made_up_answer(chat: Chat) -> str:
    """A valid answer that depends on the images only: the same request always gets the same.

    Raises:
        RequestError: An image is damaged, or the schema is beyond this engine's imagination.
    """
    seed = 0
    for at, image in enumerate(chat.images, start=1):
        decode_image(image, f"image {at}")
        seed = zlib.crc32(image, seed)
    if chat.schema is None:
        return _TEXT
    check_schema(chat.schema, "response_format")
    try:
        answer = _instance(chat.schema, seed)
        jsonschema.validate(answer, chat.schema, cls=jsonschema.Draft202012Validator, registry=Registry())
    except (TypeError, AttributeError, ZeroDivisionError, RecursionError) as error:
        raise RequestError("response_format: the emulated engine cannot make up an answer to this schema") from error
    except jsonschema.ValidationError as error:
        raise RequestError(f"the emulated engine cannot make up an answer to this schema: {error.message}") from error
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False)


def _instance(schema: Mapping[str, Any], seed: int) -> object:
    """An instance of the plain schemas that answers have; anything else is left to the check that follows."""
    if "enum" in schema:
        return schema["enum"][seed % len(schema["enum"])]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "object":
        return {name: _instance(part, seed) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [_instance(schema.get("items", {}), seed) for _ in range(schema.get("minItems", 0))]
    if kind == "string":
        return _TEXT[: schema.get("maxLength", len(_TEXT))]
    plain: Mapping[str, Any] = {
        "boolean": False,
        "integer": schema.get("minimum", 0),
        "number": schema.get("minimum", 0),
    }
    return plain.get(str(kind))


def _said(chat: Chat, text: str) -> list[Piece | End]:
    """The answer in pieces of a few characters, which count as its tokens, cut off where the request says."""
    pieces = [text[at : at + _PIECE_LENGTH] for at in range(0, len(text), _PIECE_LENGTH)]
    said = pieces[: chat.max_tokens]
    asked = sum(len(json.dumps(message)) for message in chat.messages) // _PIECE_LENGTH
    end = End("stop" if len(said) == len(pieces) else "length", asked, len(said))
    return [*(Piece(piece) for piece in said), end]
