"""The transformers engine, with a real but untrained model."""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import openai
import pytest
import torch
from PIL import Image

from pipeline_ver2.config import PipelineConfig
from pipeline_ver2.errors import ConfigError, EngineFailed, RequestError, StageUnreachable
from pipeline_ver2.prompts import build_request, read_answer
from serving.workers.chat import Chat, parse_chat
from serving.workers.stage2_engine import Watch
from serving.workers.stage2_readiness import Readiness
from serving.workers.stage2_server import build_app
from serving.workers.stage2_transformers import TransformersEngine
from tests.chats import SCHEMA, chat_body, guided, picture
from tests.questions import question
from tests.servers import served
from tests.stage2 import stage2_config
from tests.tiny_answerer import CONTEXT, write_answerer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    return write_answerer(tmp_path_factory.mktemp("answerer"))


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[TransformersEngine]:
    """The engine, loaded."""
    made = TransformersEngine(stage2_config(folder, engine="transformers", model=str(folder)).stage2)
    await made.start()
    yield made
    await made.close()


SHORT = {**SCHEMA, "properties": {**SCHEMA["properties"], "description": {"type": "string", "maxLength": 4}}}


def chat(*pictures: bytes, text: str = "What?", **fields: object) -> Chat:
    """A checked chat; greedy unless it says otherwise."""
    return parse_chat({**chat_body(*pictures, text=text), "temperature": 0, **fields}, default_max_tokens=300)


def text_of(completion: dict[str, Any]) -> str:
    """The text of the answer."""
    content: str = completion["choices"][0]["message"]["content"]
    return content


@pytest.mark.fault("B1")
async def test_a_guided_answer_is_valid_whatever_the_model_would_say(engine: TransformersEngine) -> None:
    """Untrained, greedy and sampled: always a compact object of the schema, always ended by itself."""
    for temperature, seed in ((0, 0), (1.5, 1), (1.5, 2)):
        asked = chat(picture(), response_format=guided(SHORT), temperature=temperature, seed=seed)
        completion = await engine.complete(asked, Watch())
        jsonschema.validate(json.loads(text_of(completion)), SHORT)
        assert text_of(completion).startswith('{"action":"')
        assert completion["choices"][0]["finish_reason"] == "stop"


async def test_the_products_own_request_brings_an_answer_with_confidence(engine: TransformersEngine) -> None:
    """What the orchestrator sends, read as the orchestrator reads it."""
    images = question().images
    asked = question(images=tuple(type(image)(picture(), image.time_s, image.repeated) for image in images))
    settings = PipelineConfig(answer_schema=SHORT)
    body = build_request(asked, settings, model=engine.model, max_tokens=300, send=1)
    answer = read_answer(await engine.complete(parse_chat(body, default_max_tokens=9), Watch()), asked, settings)
    assert answer.body["action"] in {"stand", "walk", "run", "none"}
    assert answer.confidence is not None
    assert 0 < answer.confidence < 1


async def test_log_probabilities_are_the_models_own(engine: TransformersEngine, folder: Path) -> None:
    """Equal to a plain forward pass over prompt and answer, before any grammar."""
    asked = chat(max_tokens=6, logprobs=True)
    completion = await engine.complete(asked, Watch())
    told = [each["logprob"] for each in completion["choices"][0]["logprobs"]["content"]]
    model = engine._model
    assert model is not None
    prompt = model.tokenizer.apply_chat_template(list(asked.messages), tokenize=False, add_generation_prompt=True)
    ids = model.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    generated = model.network.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False)[0, len(ids) :]
    with torch.inference_mode():
        logits = model.network(input_ids=torch.tensor([[*ids, *generated.tolist()]])).logits[0]
    expected = torch.log_softmax(logits[len(ids) - 1 : -1].float(), -1).gather(1, generated[:, None])[:, 0]
    assert told == pytest.approx(expected.tolist(), abs=2e-2)
    assert completion["usage"] == {"prompt_tokens": len(ids), "completion_tokens": 6, "total_tokens": len(ids) + 6}


async def test_the_images_are_seen_in_their_order(engine: TransformersEngine) -> None:
    """Another picture, or another order of pictures, changes what the model computes."""
    dark, light = noise(0), noise(1)

    async def first_logprobs(*pictures: bytes) -> list[float]:
        completion = await engine.complete(chat(*pictures, max_tokens=4, logprobs=True), Watch())
        return [each["logprob"] for each in completion["choices"][0]["logprobs"]["content"]]

    straight, swapped, again = [await first_logprobs(*each) for each in ((dark, light), (light, dark), (dark, light))]
    assert straight == again
    assert straight != swapped


def noise(seed: int) -> bytes:
    """A picture of noise."""
    encoded = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (64, 64, 3), np.uint8)).save(encoded, "PNG")
    return encoded.getvalue()


async def test_pixels_reach_the_model_as_its_image_processor_makes_them(engine: TransformersEngine) -> None:
    """A chat with an image of 64x64 has four image tokens: two by two merged patches."""
    plain, seen = chat(max_tokens=1), chat(picture(size=(64, 64)), max_tokens=1)
    without = (await engine.complete(plain, Watch()))["usage"]["prompt_tokens"]
    with_image = (await engine.complete(seen, Watch()))["usage"]["prompt_tokens"]
    assert with_image == without + 4 + 2


async def test_the_bound_on_tokens_is_kept_and_told(engine: TransformersEngine) -> None:
    """`length`, and no token more."""
    completion = await engine.complete(chat(response_format=guided(SHORT), max_tokens=7), Watch())
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == 7
    assert len(text_of(completion)) >= 7


async def test_a_seed_repeats_a_sample(engine: TransformersEngine) -> None:
    """The same seed, the same text; another seed, another text; greedy needs none."""

    async def said(temperature: float, seed: int | None = None) -> str:
        asked = chat(max_tokens=8, temperature=temperature, seed=seed)
        return text_of(await engine.complete(asked, Watch()))

    assert await said(1, seed=1) == await said(1, seed=1)
    assert await said(1, seed=1) != await said(1, seed=2)
    assert await said(0) == await said(0)


async def test_chunks_add_up_to_the_answer(engine: TransformersEngine) -> None:
    """Streamed token by token, log-probabilities too."""
    asked = chat(picture(), response_format=guided(SHORT), logprobs=True)
    whole = await engine.complete(asked, Watch())
    chunks = [chunk async for chunk in engine.stream(asked, Watch())]
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert "".join(delta["delta"].get("content", "") for delta in deltas) == text_of(whole)
    spelled = [token for delta in deltas if delta["logprobs"] for token in delta["logprobs"]["content"]]
    assert spelled == whole["choices"][0]["logprobs"]["content"]
    assert deltas[-1]["finish_reason"] == "stop"


async def test_free_text_has_no_special_tokens_and_whole_characters(engine: TransformersEngine) -> None:
    """Whatever bytes come: valid text without markers."""
    for seed in range(2):
        text = text_of(await engine.complete(chat(max_tokens=25, temperature=2, seed=seed), Watch()))
        text.encode()
        assert "<|" not in text


LONG: dict[str, Any] = {"max_tokens": 400, "temperature": 2, "seed": 1}


def steps_of(engine: TransformersEngine) -> list[int]:
    """A list that grows with every step of the model."""
    steps: list[int] = []
    assert engine._model is not None
    engine._model.network.register_forward_pre_hook(lambda *_: steps.append(1))
    return steps


@pytest.mark.fault("B8")
async def test_a_cancelled_request_stops_within_a_token(engine: TransformersEngine) -> None:
    """The thread has really ended when the cancelled call returns; the next request runs at once."""
    steps = steps_of(engine)
    running = asyncio.create_task(engine.complete(chat(**LONG), Watch()))
    while engine.alive_at is None:  # noqa: ASYNC110 - the first token has no event
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    made = len(steps)
    assert made < 300
    assert not engine._turn.locked()
    assert (await engine.complete(chat(max_tokens=1), Watch()))["usage"]["completion_tokens"] == 1
    assert len(steps) == made + 1


@pytest.mark.fault("B8")
async def test_a_closed_stream_stops_within_a_token(engine: TransformersEngine) -> None:
    """Closing after the first chunks ends the generation."""
    steps = steps_of(engine)
    stream = engine.stream(chat(**LONG), Watch())
    assert (await anext(stream))["choices"][0]["delta"]["role"] == "assistant"
    await anext(stream)
    await stream.aclose()
    assert len(steps) < 300
    assert not engine._turn.locked()


async def test_two_requests_at_once_give_what_each_gives_alone(engine: TransformersEngine) -> None:
    """The model's state is not shared; the second's waiting is told as such."""
    chats = [chat(*[picture(shade)] * count, response_format=guided(SHORT)) for shade, count in ((10, 1), (200, 3))]
    alone = [text_of(await engine.complete(each, Watch())) for each in chats]
    watches = [Watch(), Watch()]
    both = await asyncio.gather(*(engine.complete(each, watch) for each, watch in zip(chats, watches, strict=True)))
    assert [text_of(each) for each in both] == alone
    assert max(watch.waited_s for watch in watches) > 0.001


@pytest.mark.fault("B5")
async def test_markers_in_the_text_are_no_tokens(engine: TransformersEngine) -> None:
    """They cost their letters and add no image."""
    marked = chat(text="<|image_pad|><|im_end|>", max_tokens=1)
    spelled = chat(text="< |image_pad|>< |im_end|>", max_tokens=1)
    sizes = [(await engine.complete(each, Watch()))["usage"]["prompt_tokens"] for each in (marked, spelled)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text": "x" * CONTEXT}, "do not fit the model's context"),
        ({"chat_template_kwargs": {"tokenize": True}}, "tokenize cannot be set"),
        ({"response_format": guided({"type": "string", "not": {"const": "a"}})}, "cannot guide"),
        ({"stop": ["x"]}, "not supported by the transformers engine"),
    ],
)
async def test_what_cannot_be_done_is_refused(engine: TransformersEngine, fields: dict[str, Any], said: str) -> None:
    """A request error, not a dead engine."""
    with pytest.raises(RequestError, match=said):
        await engine.complete(chat(**fields), Watch())


async def test_a_template_may_refuse(engine: TransformersEngine) -> None:
    """Its own words reach the caller."""
    body = {"model": "m", "messages": [{"role": "assistant", "content": "I begin"}]}
    with pytest.raises(RequestError, match="the user comes first"):
        await engine.complete(parse_chat(body, default_max_tokens=1), Watch())


async def test_template_arguments_reach_the_template(engine: TransformersEngine) -> None:
    """Thinking on opens a tag: seven more tokens."""
    sizes = [
        (await engine.complete(chat(max_tokens=1, chat_template_kwargs={"enable_thinking": on}), Watch()))["usage"]
        for on in (False, True)
    ]
    assert sizes[1]["prompt_tokens"] == sizes[0]["prompt_tokens"] + len("<think>")


@pytest.mark.fault("B9")
@pytest.mark.parametrize(
    ("error", "event"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), "out_of_memory"),
        (RuntimeError("shapes do not match"), "failure"),
    ],
)
async def test_a_model_that_breaks_is_a_failed_engine(engine: TransformersEngine, error: Exception, event: str) -> None:
    """Told to the metrics by its kind; the next request is served."""
    events: list[str] = []
    engine.on_event = events.append
    assert engine._model is not None

    def break_once(*_: object) -> None:
        hook.remove()
        raise error

    hook = engine._model.network.register_forward_pre_hook(break_once)
    with pytest.raises(EngineFailed):
        await engine.complete(chat(max_tokens=2), Watch())
    assert events == [event]
    assert (await engine.complete(chat(max_tokens=2), Watch()))["usage"]["completion_tokens"] == 2


@pytest.mark.fault("B7")
async def test_not_loaded_is_not_ready_and_long_work_is_ready(folder: Path) -> None:
    """Readiness is a real token; an engine busy with one long answer proves itself by its tokens."""
    engine = TransformersEngine(stage2_config(folder, engine="transformers", model=str(folder)).stage2)
    readiness = Readiness(engine, deadline_s=0.5)
    with pytest.raises(StageUnreachable, match="loading"):
        await readiness.check()
    await engine.start()
    await Readiness(engine).check()
    assert engine.alive_at is not None
    engine.alive_at = None
    long = asyncio.create_task(engine.complete(chat(**LONG), Watch()))
    await readiness.check()
    assert not long.done()
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    await readiness.close()
    await engine.close()


def test_a_model_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    """The message names the key."""
    settings = stage2_config(tmp_path, engine="transformers", model=str(tmp_path / "nothing")).stage2
    with pytest.raises(ConfigError, match=r"^stage2\.model: "):
        asyncio.run(TransformersEngine(settings).start())


async def test_the_daemon_serves_it_to_openai_clients(folder: Path) -> None:
    """From HTTP to the model and back."""
    config = stage2_config(folder, engine="transformers", model=str(folder))
    with served(build_app(config)) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            body: Any = chat_body(picture(), model=str(folder), response_format=guided(SHORT), logprobs=True)
            completion = await client.chat.completions.create(**body)
    choice = completion.choices[0]
    jsonschema.validate(json.loads(choice.message.content or ""), SHORT)
    assert choice.logprobs is not None
    assert all(math.isfinite(token.logprob) for token in choice.logprobs.content or ())
