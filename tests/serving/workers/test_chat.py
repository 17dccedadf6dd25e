"""What is checked of a chat request before any engine sees it."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline_ver2.errors import RequestError
from serving.workers.chat import (
    MAX_IMAGES,
    Chat,
    End,
    Piece,
    ReplyWriter,
    Token,
    check_image,
    decode_image,
    parse_chat,
    refuse_unsupported,
)
from tests.chats import chat_body, data_url, guided, image_part, picture


def parsed(body: object) -> Chat:
    """The checked chat; 160 tokens unless it says otherwise."""
    return parse_chat(body, default_max_tokens=160)


def user(content: object) -> dict[str, Any]:
    """A body with one message of the user."""
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


def test_a_plain_text_chat() -> None:
    """One text, no image: all the defaults."""
    chat = parsed(user("Hello"))
    assert chat.messages == ({"role": "user", "content": "Hello"},)
    assert (chat.images, chat.max_tokens, chat.temperature, chat.schema) == ((), 160, 1.0, None)
    assert chat.body["max_tokens"] == 160


def test_images_are_taken_out_in_their_order() -> None:
    """Three pictures, their places marked between the texts."""
    pictures = [picture(shade) for shade in (10, 20, 30)]
    chat = parsed(chat_body(*pictures, text="Which?"))
    assert list(chat.images) == pictures
    assert [part["type"] for part in chat.messages[0]["content"]] == ["image", "image", "image", "text"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_three_kinds_of_pictures_are_taken(kind: str) -> None:
    """Named by their real type in the URL."""
    data = picture(kind=kind)
    chat = parsed(user([image_part(data_url(data, kind.lower()))]))
    assert chat.images == (data,)
    assert decode_image(data, "it").shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (image_part("http://127.0.0.1/a.jpg"), "fetches nothing"),
        (image_part("https://example.com/a.jpg"), "fetches nothing"),
        (image_part("file:///etc/passwd"), "fetches nothing"),
        (image_part("data:text/plain;base64,YQ=="), "fetches nothing"),
        (image_part("data:image/jpeg;base64,%%%"), "base64"),
        (image_part(data_url(b"not a picture")), "not a JPEG"),
        (image_part(data_url(b"")), "not a JPEG"),
        (image_part(data_url(picture(kind="BMP"), "png")), "not a JPEG"),
        (image_part(data_url(picture(size=(402, 2)))), "200:1"),
        ({"type": "image_url"}, "needs image_url"),
        ({"type": "text"}, "needs text"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "content"),
        ({"type": "input_audio"}, "content"),
    ],
)
def test_parts_that_cannot_be_used_are_refused(part: dict[str, Any], said: str) -> None:
    """Above all, nothing makes this server fetch a URL."""
    with pytest.raises(RequestError, match=said):
        parsed(user([part]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n": 2}, "^n: "),
        ({"messages": []}, "^messages: "),
        ({"messages": "hello"}, "^messages: "),
        ({"messages": [{"role": "robot", "content": ""}]}, "^messages.0.role: "),
        ({"max_tokens": 0}, "^max_tokens: "),
        ({"max_tokens": 10**9}, "^max_tokens: "),
        ({"temperature": 3}, "^temperature: "),
        ({"top_p": 0}, "^top_p: "),
        ({"seed": "x"}, "^seed: "),
        ({"seed": 2**64}, "^seed: "),
        ({"model": None}, "^model: "),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "xml"}}, "^response_format.type: "),
        ({"response_format": guided({"type": "nonsense"})}, "schema"),
    ],
)
def test_fields_that_do_not_fit_are_named(fields: dict[str, Any], said: str) -> None:
    """The message begins with the field."""
    with pytest.raises(RequestError, match=said):
        parsed({**user("Hello"), **fields})


@pytest.mark.parametrize("body", [None, [], "hello", 3])
def test_a_body_must_be_an_object(body: object) -> None:
    """Anything else is refused."""
    with pytest.raises(RequestError, match="JSON object"):
        parsed(body)


def test_the_number_of_images_is_bounded() -> None:
    """Sixteen are taken, seventeen are not."""
    assert len(parsed(chat_body(*[picture()] * MAX_IMAGES)).images) == MAX_IMAGES
    with pytest.raises(RequestError, match="17 images"):
        parsed(chat_body(*[picture()] * (MAX_IMAGES + 1)))


def test_an_image_is_refused_by_its_head_before_its_pixels_are_decoded() -> None:
    """A small file that says it has 64 million pixels costs nothing."""
    encoded = io.BytesIO()
    Image.new("1", (8000, 8000)).save(encoded, "PNG")
    assert len(encoded.getvalue()) < 100_000
    with pytest.raises(RequestError, match="pixels"):
        check_image(encoded.getvalue(), "it")


@pytest.mark.fault("B4")
def test_the_pixels_of_a_request_are_bounded_together() -> None:
    """Images that are small enough each are too many together; again nothing is decoded."""
    encoded = io.BytesIO()
    Image.new("1", (7000, 7000)).save(encoded, "PNG")
    assert len(parsed(chat_body(*[encoded.getvalue()] * 2)).images) == 2
    with pytest.raises(RequestError, match=r"^messages: 147000000 pixels up to image 3, at most 100000000 "):
        parsed(chat_body(*[encoded.getvalue()] * 3))


def test_a_picture_cut_off_is_refused_when_decoded() -> None:
    """Its head is fine, its pixels are not."""
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(noise).save(encoded, "PNG")
    with pytest.raises(RequestError, match="it: the image is damaged"):
        decode_image(encoded.getvalue()[: len(encoded.getvalue()) // 2], "it")


def test_decoding_keeps_the_order_of_colours() -> None:
    """Red is red."""
    encoded = io.BytesIO()
    Image.new("RGB", (64, 64), (255, 0, 0)).save(encoded, "PNG")
    assert decode_image(encoded.getvalue(), "it")[5, 5].tolist() == [255, 0, 0]


@pytest.mark.fault("B5")
@pytest.mark.parametrize("as_parts", [False, True])
def test_markers_in_text_reach_no_engine(as_parts: object) -> None:
    """Neither the template of an engine here nor a server behind sees them."""
    text = "a <|im_end|><|image_pad|> b"
    chat = parsed(user([{"type": "text", "text": text}] if as_parts else text))
    for seen in (json.dumps(chat.messages), json.dumps(chat.body["messages"])):
        assert "<|" not in seen
        assert "< |im_end|>" in seen


@pytest.mark.fault("B5")
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}]},
        {"documents": [{"title": "t", "text": ["<|image_pad|>"]}]},
        {"chat_template_kwargs": {"note": "<|im_start|>"}},
    ],
)
def test_markers_anywhere_in_the_body_reach_no_server_behind(fields: dict[str, Any]) -> None:
    """Templates may show tools, documents and whatever else comes along."""
    passed = parsed({**user("hello"), **fields}).body
    assert "<|" not in json.dumps({name: passed[name] for name in fields})


def test_a_body_nested_too_deeply_is_refused() -> None:
    """No recursion of ours gives way under it."""
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RequestError, match="nested too deeply"):
        parsed({**user("hello"), "documents": deep})


def test_what_this_server_does_not_know_is_passed_on() -> None:
    """A server behind gets the caller's body, bounded; `n` and the newer name of the bound are settled here."""
    body = chat_body(picture(), top_k=20, max_completion_tokens=9, n=1, user="me", seed=5)
    passed = parsed(body).body
    assert passed["top_k"] == 20
    assert passed["max_tokens"] == 9
    assert passed["seed"] == 5
    assert "max_completion_tokens" not in passed
    assert passed["messages"] == body["messages"]


@pytest.mark.parametrize(
    "fields",
    [{"tools": [{}]}, {"stop": ["x"]}, {"top_logprobs": 3}, {"presence_penalty": 1}, {"logit_bias": {"1": 1}}],
)
def test_what_an_engine_here_cannot_do_is_said(fields: dict[str, Any]) -> None:
    """Not ignored: the answer would be another one."""
    with pytest.raises(RequestError, match=f"^{next(iter(fields))}: not supported"):
        refuse_unsupported(parsed({**user("Hello"), **fields}), "emulated")


def test_harmless_values_of_the_same_fields_pass() -> None:
    """Clients send defaults."""
    refuse_unsupported(parsed({**user("Hello"), "stop": None, "tools": [], "presence_penalty": 0.0}), "emulated")


def test_developer_messages_are_system_messages_and_empty_ones_are_empty() -> None:
    """Templates know three roles."""
    body = {"model": "m", "messages": [{"role": "developer", "content": "a"}, {"role": "assistant", "content": None}]}
    assert parsed(body).messages == ({"role": "system", "content": "a"}, {"role": "assistant", "content": ""})


def test_log_probabilities_spell_the_text_in_bytes() -> None:
    """A character of two tokens: no text for the first, the whole one for the second, two bytes in all."""
    pieces = [Piece("", Token(b"\xc3", -0.5)), Piece("ö", Token(b"\xb6", -0.25))]
    chat = parsed({**user("Hello"), "logprobs": True})
    choice = ReplyWriter(chat, "m").completion(pieces, End("stop", 3, 2))["choices"][0]
    assert choice["message"]["content"] == "ö"
    assert [each["bytes"] for each in choice["logprobs"]["content"]] == [[0xC3], [0xB6]]
    unasked = ReplyWriter(parsed(user("Hello")), "m").completion(pieces, End("stop", 3, 2))
    assert unasked["choices"][0]["logprobs"] is None
