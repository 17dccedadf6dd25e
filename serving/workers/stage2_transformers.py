"""The transformers engine: a Qwen vision-language model in this process, on one thread of its own.

The model keeps state between its steps (`rope_deltas`), so one generation runs at a time; images of the next request
are decoded meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
from jinja2 import TemplateError
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer, GenerationConfig, LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils.logging import disable_progress_bar

from pipeline_ver2.config import Stage2Config
from pipeline_ver2.errors import ConfigError, EngineFailed, RequestError, StageUnreachable
from serving.workers.chat import Chat, End, Piece, decode_image
from serving.workers.cpus import usable_cpus
from serving.workers.stage2_engine import (
    DEMO_LABELS,
    DEMO_MODEL,
    DEMO_MODEL_FOLDER,
    EngineEvent,
    EngineName,
    LocalEngine,
    Watch,
)
from serving.workers.stage2_generation import Feed, Grammars, Guide, Recorder, Speller, Step, Stopper

_GREEDY_BELOW = 0.01
_LOADING_RETRY_S = 2.0

_new_settings: Any = GenerationConfig  # its constructor has no types


@dataclass(frozen=True, slots=True)
class _Model:
    """All that is loaded from a model folder."""

    network: Any
    tokenizer: Any
    pictures: Any
    grammars: Grammars
    eos_ids: frozenset[int]
    silent_ids: frozenset[int]
    image_token_id: int
    context: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A chat as the model takes it."""

    inputs: Mapping[str, torch.Tensor]
    prompt_length: int
    matcher: Any
    settings: Any
    seed: int | None


@dataclass(slots=True)
class _Run:
    """One generation as both threads see it. `steps` ends with None; the loop counts them."""

    loop: asyncio.AbstractEventLoop
    stop: threading.Event = field(default_factory=threading.Event)
    steps: asyncio.Queue[Step | None] = field(default_factory=asyncio.Queue)
    count: int = 0
    last_id: int | None = None

    def emit(self, step: Step | None) -> None:
        """Called in the model's thread. The queue has no bound of its own: `max_tokens` is its bound."""
        self.loop.call_soon_threadsafe(self.steps.put_nowait, step)


class TransformersEngine(LocalEngine):
    """Serves `stage2.model`, a folder or a name on the Hugging Face hub; the embedded demo model by default."""

    name: ClassVar[EngineName] = "transformers"

    def __init__(self, settings: Stage2Config) -> None:
        embedded = settings.model is None
        super().__init__(settings.model or DEMO_MODEL, DEMO_LABELS if embedded else None)
        self._source = settings.model or str(DEMO_MODEL_FOLDER)
        if embedded and not (DEMO_MODEL_FOLDER / "config.json").is_file():
            raise ConfigError(f"stage2.model: not set, and the embedded model is not at {DEMO_MODEL_FOLDER}")
        self._threads = settings.threads
        self._model: _Model | None = None
        self._model_thread = ThreadPoolExecutor(1, thread_name_prefix="stage2-model")
        # One: fast tokenizers cannot be used by two threads at once.
        self._helper_thread = ThreadPoolExecutor(1, thread_name_prefix="stage2-prepare")
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Load the model."""
        loop = asyncio.get_running_loop()
        self._model = await loop.run_in_executor(self._model_thread, _load, self._source, self._threads)

    async def close(self) -> None:
        """End the threads; a generation at work ends at its next token."""
        self._model = None
        self._model_thread.shutdown(wait=False, cancel_futures=True)
        self._helper_thread.shutdown(wait=False, cancel_futures=True)

    async def pieces(self, chat: Chat, watch: Watch) -> AsyncGenerator[Piece | End, None]:
        """Prepare beside the generation at work, wait for the model, then pass its tokens on."""
        if self._model is None:
            raise StageUnreachable(f"{self.model} is still loading", retry_after_s=_LOADING_RETRY_S)
        model, loop = self._model, asyncio.get_running_loop()
        with self._failures_mapped():
            prepared = await loop.run_in_executor(self._helper_thread, _prepare, model, chat)
        asked = loop.time()
        async with self._turn:
            watch.waited_s += loop.time() - asked
            run = _Run(loop)
            with self._failures_mapped():
                generation = loop.run_in_executor(self._model_thread, _generate, model, prepared, run)
                try:
                    async for piece in self._spelled(model, run):
                        yield piece
                    await generation
                finally:
                    run.stop.set()
                    await asyncio.wait({generation})  # the turn is over when the thread really is
                    _ = generation.cancelled() or generation.exception()  # looked at, or asyncio complains
        yield End("stop" if run.last_id in model.eos_ids else "length", prepared.prompt_length, run.count)

    async def _spelled(self, model: _Model, run: _Run) -> AsyncGenerator[Piece, None]:
        speller = Speller(model.grammars.tokenizer)
        while (step := await run.steps.get()) is not None:
            self.was_alive()
            run.count, run.last_id = run.count + 1, step.token_id
            if step.token_id not in model.silent_ids:
                yield speller.piece(step)
        if rest := speller.rest():
            yield Piece(rest)

    @contextmanager
    def _failures_mapped(self) -> Iterator[None]:
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError) as error:
            self._fail("out_of_memory", error)
        except (RuntimeError, ValueError, IndexError, TypeError, KeyError) as error:
            # The CPU allocator has no error class of its own.
            self._fail("out_of_memory" if "can't allocate memory" in str(error) else "failure", error)

    def _fail(self, event: EngineEvent, error: Exception) -> NoReturn:
        self.was_hurt(event)
        raise EngineFailed(f"{event.replace('_', ' ')} in the transformers engine: {str(error)[:300]}") from error


def uses_gpu() -> bool:
    """Whether models are put on a GPU here."""
    return torch.cuda.is_available()


def _load(source: str, threads: int | None) -> _Model:
    """Load a model folder. Runs in the model's thread, whose number of threads it sets."""
    # One core is left to decoding and Stage 1: threads that wait for each other on busy cores take 100 times as long.
    torch.set_num_threads(threads or max(1, usable_cpus() - 1))
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        network: Any = AutoModelForImageTextToText.from_pretrained(source, dtype="auto", attn_implementation="sdpa")
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
        pictures: Any = Qwen2VLImageProcessorPil.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"stage2.model: {source} cannot be loaded: {str(error)[:500]}") from error
    image_token_id = getattr(network.config, "image_token_id", None)
    if image_token_id is None or tokenizer.chat_template is None:
        raise ConfigError(f"stage2.model: {source} is no Qwen vision-language chat model")
    network = network.to("cuda" if uses_gpu() else "cpu").eval()
    eos_ids = _eos_ids(network, tokenizer)
    network.generation_config = _new_settings(eos_token_id=eos_ids, pad_token_id=eos_ids[-1])
    text_config = network.config.get_text_config()
    grammars = Grammars(tokenizer, vocab_size=text_config.vocab_size, eos_ids=eos_ids)
    return _Model(
        network=network,
        tokenizer=tokenizer,
        pictures=pictures,
        grammars=grammars,
        eos_ids=frozenset(eos_ids),
        silent_ids=frozenset([*eos_ids, *(at for at, each in tokenizer.added_tokens_decoder.items() if each.special)]),
        image_token_id=image_token_id,
        context=text_config.max_position_embeddings,
    )


def _eos_ids(network: Any, tokenizer: Any) -> list[int]:  # noqa: ANN401 - untyped library
    named = network.generation_config.eos_token_id
    ids = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    return list(dict.fromkeys(token for token in ids if token is not None))


def _prepare(model: _Model, chat: Chat) -> _Prepared:
    """Decode, write out the turns, make one image token per merged patch. Runs in the helper thread."""
    ids = model.tokenizer(_written(model, chat), add_special_tokens=False)["input_ids"]
    if ids.count(model.image_token_id) != len(chat.images):
        raise RequestError(f"messages: the text names {ids.count(model.image_token_id)} images besides those it has")
    seen = _seen(model, chat)
    counts = [int(grid.prod()) // model.pictures.merge_size**2 for grid in seen.get("image_grid_thw", ())]
    expanded = torch.tensor([_expanded(ids, model.image_token_id, counts)])
    length = expanded.shape[1]
    if length >= model.context:
        raise RequestError(f"messages: {length} tokens do not fit the model's context of {model.context}")
    device = model.network.device
    inputs = {
        "input_ids": expanded,
        "attention_mask": torch.ones_like(expanded),
        "mm_token_type_ids": (expanded == model.image_token_id).int(),
        **seen,
    }
    return _Prepared(
        inputs={name: tensor.to(device) for name, tensor in inputs.items()},
        prompt_length=length,
        matcher=None if chat.schema is None else model.grammars.matcher(chat.schema),
        settings=_settings(model, chat, min(chat.max_tokens, model.context - length)),
        seed=chat.seed,
    )


def _written(model: _Model, chat: Chat) -> str:
    taken = set(chat.template_kwargs) & set(inspect.signature(model.tokenizer.apply_chat_template).parameters)
    if taken:
        raise RequestError(f"chat_template_kwargs: {', '.join(sorted(taken))} cannot be set")
    try:
        text: str = model.tokenizer.apply_chat_template(
            list(chat.messages), tokenize=False, add_generation_prompt=True, **chat.template_kwargs
        )
    except TemplateError as error:
        raise RequestError(f"messages: the model's chat template refuses them: {error}") from error
    return text


def _seen(model: _Model, chat: Chat) -> dict[str, torch.Tensor]:
    if not chat.images:
        return {}
    images = [Image.fromarray(decode_image(data, f"image {at}")) for at, data in enumerate(chat.images, start=1)]
    return dict(model.pictures(images, return_tensors="pt"))


def _expanded(ids: list[int], image_token_id: int, counts: list[int]) -> list[int]:
    left = iter(counts)
    return [each for token in ids for each in ([token] * next(left) if token == image_token_id else [token])]


def _settings(model: _Model, chat: Chat, max_tokens: int) -> Any:  # noqa: ANN401 - untyped library
    sampling: dict[str, Any] = {"do_sample": False}
    if chat.temperature >= _GREEDY_BELOW:
        sampling = {"do_sample": True, "temperature": chat.temperature, "top_p": chat.top_p, "top_k": 0}
    ends = model.network.generation_config
    return _new_settings(
        max_new_tokens=max_tokens, eos_token_id=ends.eos_token_id, pad_token_id=ends.pad_token_id, **sampling
    )


def _generate(model: _Model, prepared: _Prepared, run: _Run) -> None:
    """Generate to the end, the bound, or until nobody waits. Runs in the model's thread."""
    recorder = Recorder()
    processors = LogitsProcessorList([recorder])
    if prepared.matcher is not None:
        processors.append(Guide(prepared.matcher, prepared.prompt_length))
    try:
        if prepared.seed is None:
            torch.seed()
        else:
            torch.manual_seed(prepared.seed)
        with torch.inference_mode():
            model.network.generate(
                **prepared.inputs,
                generation_config=prepared.settings,
                logits_processor=processors,
                stopping_criteria=StoppingCriteriaList([Stopper(run.stop)]),
                streamer=Feed(recorder, run.emit),
            )
    finally:
        run.emit(None)
