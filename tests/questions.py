"""A slot's question and chat completions, made by hand."""

from __future__ import annotations

from typing import Any

from pipeline_ver2.prompts import Question, SlotImage
from pipeline_ver2.wire import Detection, LabelScore

LABELS = ("stand", "walk")
GOOD = '{"action":"walk","description":"One person walks."}'


def person(**scores: float) -> Detection:
    """A detected person with these labels."""
    return Detection(box=(0, 0, 1, 1), labels=tuple(LabelScore(name=name, score=at) for name, at in scores.items()))


IMAGES = (SlotImage(b"a", 0.333), SlotImage(b"b", 0.7), SlotImage(b"b", 0.7, repeated=True))


def question(
    *,
    images: tuple[SlotImage, ...] = IMAGES,
    findings: tuple[tuple[Detection, ...], ...] = ((person(walk=0.83),), (), ()),
    labels: tuple[str, ...] = LABELS,
) -> Question:
    """Three images, the last one filling up; a walking person in the first."""
    return Question(images, findings, labels)


def reply(
    content: str | None, finish_reason: str | None = "stop", *, logprobs: object = None, reasoning: str | None = None
) -> dict[str, Any]:
    """A chat completion."""
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    choice = {"message": message, "finish_reason": finish_reason, "logprobs": logprobs}
    return {"choices": [choice], "usage": {"total_tokens": 9}}
