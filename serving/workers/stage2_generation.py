"""One generation with transformers: the grammar that guides it, the log-probabilities, the tokens as they come."""

from __future__ import annotations

import codecs
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import llguidance
import llguidance.hf
import torch
from transformers import LogitsProcessor, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from pipeline_ver2.errors import EngineFailed, RequestError
from serving.workers.chat import Piece, Token
from serving.workers.guidance import grammar_of

_CACHED_GRAMMARS = 32


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token: its id, and the logarithm of its probability before grammar and temperature."""

    token_id: int
    logprob: float


class Grammars:
    """Compiles JSON schemas to token grammars without free whitespace, so that no answer can end in blanks."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, eos_ids: list[int]) -> None:  # noqa: ANN401 - untyped library
        self.tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=eos_ids)
        self._compiled: dict[str, Any] = {}

    def matcher(self, schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 - untyped library
        """A fresh matcher for the schema. One thread at a time.

        Raises:
            RequestError: The schema uses what the grammar cannot express.
        """
        key = json.dumps(schema)
        if key not in self._compiled:
            while len(self._compiled) >= _CACHED_GRAMMARS:
                self._compiled.pop(next(iter(self._compiled)))
            self._compiled[key] = self._compile(key)
        return self._compiled[key].deep_copy()

    def _compile(self, schema: str) -> Any:  # noqa: ANN401 - untyped library
        matcher = llguidance.LLMatcher(self.tokenizer, grammar_of(schema))
        if matcher.is_error():
            raise RequestError(f"response_format: this schema cannot guide the answer: {matcher.get_error()[:300]}")
        return matcher


class Recorder(LogitsProcessor):
    """Keeps the log-probabilities of the last step, as the model gave them. Must come before every other processor."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Look at `(1, V)` scores, change nothing."""
        self.last = torch.log_softmax(scores[0].float(), dim=-1)
        return scores


class Guide(LogitsProcessor):
    """Lets only tokens through that keep the answer inside the grammar."""

    def __init__(self, matcher: Any, prompt_length: int) -> None:  # noqa: ANN401 - untyped library
        self._matcher = matcher
        self._seen = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mask `(1, V)` scores by what the grammar allows after `(1, L)` tokens."""
        for token in input_ids[0, self._seen :].tolist():
            self._matcher.consume_token(token)
        self._seen = input_ids.shape[1]
        bias = bytearray(self._matcher.compute_logit_bias())
        if self._matcher.is_error():
            raise EngineFailed(f"the grammar lost the answer: {self._matcher.get_error()[:300]}")
        refused = torch.frombuffer(bias, dtype=torch.uint8) == 0
        padded = torch.ones(scores.shape[-1], dtype=torch.bool)
        padded[: len(refused)] = refused[: scores.shape[-1]]
        return scores.masked_fill(padded.to(scores.device), -torch.inf)


class Stopper(StoppingCriteria):
    """Ends generation before the next token once nobody waits for it any more."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        """`(B,)` bool, all of them the same."""
        return torch.full((input_ids.shape[0],), self._stop.is_set(), dtype=torch.bool, device=input_ids.device)


class Feed(BaseStreamer):
    """Hands each token over as soon as it is there."""

    def __init__(self, recorder: Recorder, emit: Callable[[Step], None]) -> None:
        self._recorder = recorder
        self._emit = emit
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """First comes the prompt, then every token by itself."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        token_id = int(value.reshape(-1)[0])
        logprob = 0.0 if self._recorder.last is None else float(self._recorder.last[token_id])
        self._emit(Step(token_id, logprob))

    def end(self) -> None:
        """Nothing is held back."""


class Speller:
    """Turns tokens into text; the bytes of a character that several tokens make up are held back until it is whole."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - untyped library
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def piece(self, step: Step) -> Piece:
        """The text that the token completes, and the token itself."""
        spelled = self._tokenizer.decode_bytes([step.token_id])
        return Piece(self._decoder.decode(spelled), Token(spelled, step.logprob))

    def rest(self) -> str:
        """What is left of a character that was cut off."""
        return self._decoder.decode(b"", final=True)
