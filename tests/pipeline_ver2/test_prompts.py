"""Prompt, schema, images and answers of Stage 2. The golden tests freeze what the embedded answerer is trained on."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import JpegImagePlugin

from pipeline_ver2.config import PipelineConfig
from pipeline_ver2.prompts import (
    SlotImage,
    answer_schema,
    build_messages,
    build_request,
    describe_findings,
    encode_image,
    neutralise,
)
from tests.questions import LABELS, person, question

SETTINGS = PipelineConfig()


def test_the_messages_are_frozen() -> None:
    """Text, order and structure of the default prompt, character by character."""
    assert build_messages(question(), SETTINGS) == [
        {
            "role": "system",
            "content": "You check the findings of an action detector against video frames. "
            "Answer with one JSON object only.",
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Frame 1, t=0.33 s"},
                {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,YQ=="}},
                {"type": "text", "text": "Frame 2, t=0.70 s"},
                {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,Yg=="}},
                {"type": "text", "text": "Frame 3, t=0.70 s, same as frame 2"},
                {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,Yg=="}},
                {
                    "type": "text",
                    "text": "Detector findings: frame 1: walk 0.83; frame 2: nobody; frame 3: nobody. "
                    "They may be wrong or incomplete; trust the frames.\n"
                    "Which action do the frames show? Choose one of: stand, walk, or none if nobody is seen. "
                    "If several people act, choose the most notable action.",
                },
            ],
        },
    ]


def test_the_schema_is_frozen() -> None:
    """The action is an enum that ends with none; the description is bounded; nothing else may be there."""
    assert answer_schema(LABELS, SETTINGS) == {
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": ["stand", "walk", "none"]},
            "description": {"type": "string", "maxLength": 200},
        },
        "required": ["action", "description"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("send", "sampling"),
    [(1, {"temperature": 0.0}), (2, {"temperature": 0.7, "top_p": 0.8, "seed": 2})],
    ids=["first", "second"],
)
def test_the_request_is_frozen(send: int, sampling: dict[str, float]) -> None:
    """Guided, bounded, without thinking; the first send is greedy and the second samples."""
    asked = question()
    assert build_request(asked, SETTINGS, model="m", max_tokens=7, send=send) == {
        "model": "m",
        "messages": build_messages(asked, SETTINGS),
        "max_tokens": 7,
        "logprobs": True,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": answer_schema(LABELS, SETTINGS), "strict": True},
        },
        "chat_template_kwargs": {"enable_thinking": False},
        **sampling,
    }


def opened(jpeg: bytes) -> JpegImagePlugin.JpegImageFile:
    """The image as decoded by another library."""
    return JpegImagePlugin.JpegImageFile(io.BytesIO(jpeg))


def test_the_image_encoding_is_frozen() -> None:
    """JPEG of quality 90 with halved colour, 1080p down to 1024x576, colours where they were."""
    rgb = np.zeros((1080, 1920, 3), np.uint8)
    rgb[:, :960] = (200, 30, 10)
    image = opened(encode_image(rgb, max_px=SETTINGS.image_max_px, quality=SETTINGS.jpeg_quality))
    assert (image.format, image.size) == ("JPEG", (1024, 576))
    assert list(image.quantization[0][:8]) == [3, 2, 2, 3, 5, 8, 10, 12]
    assert JpegImagePlugin.get_sampling(image) == 2  # 4:2:0
    pixels = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(pixels[300, 200] - (200, 30, 10)).max() <= 4
    assert pixels[300, 900].max() <= 4


def test_an_image_under_the_cap_keeps_its_size() -> None:
    """Nothing is scaled without need."""
    rgb = np.zeros((360, 640, 3), np.uint8)
    assert opened(encode_image(rgb, max_px=589_824, quality=90)).size == (640, 360)


@pytest.mark.fault("B4")
@pytest.mark.parametrize(
    ("height", "width", "size"),
    [
        (20, 30, (64, 64)),
        (1, 1, (64, 64)),
        (30, 640, (640, 64)),
        (10, 6000, (6000, 120)),
        (6000, 10, (120, 6000)),
        (2160, 3840, (1024, 576)),
    ],
)
def test_images_no_model_could_take_are_padded_or_scaled(height: int, width: int, size: tuple[int, int]) -> None:
    """At least 64 px a side, at most 50:1, at most the cap; what is added is black, at right and below."""
    image = opened(encode_image(np.full((height, width, 3), 255, np.uint8), max_px=589_824, quality=90))
    assert image.size == size
    pixels = np.asarray(image.convert("L"))
    assert pixels[0, 0] > 200
    if size[1] > height:
        assert pixels[-1, -1] < 50


@pytest.mark.fault("B3")
def test_images_are_copies_in_order_and_told_apart() -> None:
    """Three frames through one buffer stay three images, each behind its own number and time."""
    buffer = np.zeros((64, 64, 3), np.uint8)
    images = []
    for at in range(3):
        buffer[:] = at * 100
        images.append(SlotImage(encode_image(buffer, max_px=10_000, quality=90), at / 3))
    content = build_messages(question(images=tuple(images)), SETTINGS)[1]["content"]
    assert [part["text"] for part in content[0:6:2]] == [
        "Frame 1, t=0.00 s",
        "Frame 2, t=0.33 s",
        "Frame 3, t=0.67 s",
    ]
    urls = [part["image_url"]["url"] for part in content[1:6:2]]
    shown = [opened(base64.b64decode(url.partition(",")[2])).convert("L").getpixel((9, 9)) for url in urls]
    assert shown == pytest.approx([0, 100, 200], abs=2)


MARKERS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|image_pad|>",
    "<|vision_start|>",
    "</think>",
    "<think>",
    "<image>",
    "[INST]",
]


@pytest.mark.fault("B5")
@pytest.mark.parametrize("marker", MARKERS)
def test_markers_in_the_users_prompt_are_broken_up(marker: str) -> None:
    """Neither prompt, labels nor findings can carry a marker, and the words around it stay."""
    settings = PipelineConfig(prompt=f"Before {marker} after {{labels}} {{findings}}")
    asked = question(labels=(f"x{marker}",), findings=((person(**{f"y{marker}": 0.5}),), (), ()))
    text = build_messages(asked, settings)[1]["content"][-1]["text"]
    assert marker not in text
    assert text.startswith(f"Before {marker[0]} {marker[1:]} after x{marker[0]}")


@pytest.mark.fault("B5")
@given(st.lists(st.sampled_from([*MARKERS, "<", "|", ">", "[", "]", "/", " ", "a", "A"]), max_size=8))
def test_no_marker_survives(parts: list[str]) -> None:
    """However markers are nested or glued together; and a second pass changes nothing."""
    once = neutralise("".join(parts))
    assert not any(marker in once for marker in MARKERS)
    assert neutralise(once) == once


def test_ordinary_text_is_left_alone() -> None:
    """Comparisons, brackets and mathematics are no markers."""
    text = "a < b, x <3, [note], [1], if n<=2"
    assert neutralise(text) == text


def test_findings_name_the_best_labels_of_the_best_persons() -> None:
    """At most five persons a frame and three labels a person, best first, one word for an empty frame."""
    busy = (person(stand=0.52), person(walk=0.31, run=0.83, wave=0.4, jump=0.1))
    assert describe_findings([busy, []]) == "frame 1: run 0.83/wave 0.40/walk 0.31, stand 0.52; frame 2: nobody"
    crowd = [person(walk=score / 10) for score in range(1, 8)]
    assert describe_findings([crowd]) == "frame 1: walk 0.70, walk 0.60, walk 0.50, walk 0.40, walk 0.30"
    assert describe_findings([]) == ""
