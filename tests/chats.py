"""Chat requests made by hand."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["stand", "walk", "run", "none"]},
        "description": {"type": "string", "maxLength": 20},
    },
    "required": ["action", "description"],
    "additionalProperties": False,
}


def picture(shade: int = 90, *, size: tuple[int, int] = (64, 48), kind: str = "JPEG") -> bytes:
    """An encoded picture of one grey; `size` is (width, height)."""
    encoded = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0], 3), shade, np.uint8)).save(encoded, kind)
    return encoded.getvalue()


def data_url(data: bytes, kind: str = "jpeg") -> str:
    """The URL that carries a picture."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def image_part(url: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "image_url", "image_url": {"url": url}}


def chat_body(*pictures: bytes, model: str = "emulated", text: str = "What is it?", **fields: object) -> dict[str, Any]:
    """A request with these pictures and one text."""
    content = [image_part(data_url(each)) for each in pictures]
    return {
        "model": model,
        "messages": [{"role": "user", "content": [*content, {"type": "text", "text": text}]}],
        **fields,
    }


def guided(schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """A `response_format` that asks for this schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema or SCHEMA, "strict": True}}
