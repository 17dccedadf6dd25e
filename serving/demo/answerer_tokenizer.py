"""The answerer's tokenizer and chat template: byte-level BPE in Qwen's fashion, with the product's wording built in.

Loaders give every ``qwen3_5`` tokenizer Qwen's own pre-tokenizer, so whole phrases are added tokens instead of merges:
each action is one token wherever it stands, and the frozen sentences of the prompt cost one token each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import TokenizersBackend
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from pipeline_ver2.prompts import NOBODY, QUESTION, SYSTEM_PROMPT

END_OF_TEXT = "<|endoftext|>"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
SPECIALS = (END_OF_TEXT, TURN_START, TURN_END, VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message['role'] + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'text' -%}{{ part['text'] }}"
    "{%- else -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

_MAX_MERGED = 512
_FRAMES = range(1, 4)


def build_tokenizer(actions: Sequence[str], corpus: Iterable[str]) -> Qwen3_5Tokenizer:
    """Train the tokenizer.

    Args:
        actions: Names of the actions; each becomes one token, as does `none`.
        corpus: Prompts and answers to learn merges from.
    """
    tokenizer = Qwen3_5Tokenizer()
    fixed = [*SPECIALS, *_phrases(actions)]
    trainer = BpeTrainer(vocab_size=_MAX_MERGED, initial_alphabet=_alphabet(), show_progress=False)
    backend = tokenizer.backend_tokenizer
    backend.train_from_iterator((_without(text, fixed) for text in corpus), trainer)
    learned = json.loads(backend.to_str())["model"]
    merges: Any = [tuple(pair) for pair in learned["merges"]]  # the constructor's annotation forgets pairs
    built = Qwen3_5Tokenizer(
        vocab=learned["vocab"],
        merges=merges,
        unk_token=END_OF_TEXT,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=4096,
    )
    built.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS], special_tokens=True)
    built.add_tokens([AddedToken(text, special=False, normalized=False) for text in _phrases(actions)])
    built.chat_template = CHAT_TEMPLATE
    return built


def save_tokenizer(tokenizer: Qwen3_5Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template."""
    tokenizer.save_pretrained(folder)


def turns(tokenizer: TokenizersBackend, messages: list[dict[str, Any]]) -> str:
    """Chat messages as the text the model reads, up to where its answer starts."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    return str(text)


def _phrases(actions: Sequence[str]) -> list[str]:
    before, rest = QUESTION.split("{findings}")
    middle, after = rest.split("{labels}")
    frames = [f"Frame {number}, t=" for number in _FRAMES]
    findings = [f"; frame {number}: " for number in _FRAMES[1:]]
    again = [f" s, same as frame {number}" for number in _FRAMES[:-1]]
    sentences = [SYSTEM_PROMPT, f"{before}frame 1: ", middle, after]
    scores = [f" 0.{digit}" for digit in range(10)]
    return [", ".join(actions), *actions, NOBODY, "nobody", *sentences, *frames, *again, *findings, *scores, ", "]


def _without(text: str, fixed: Sequence[str]) -> str:
    for phrase in fixed:
        text = text.replace(phrase, "\n")
    return text


def _alphabet() -> list[str]:
    """All 256 byte symbols, so that no text is out of the vocabulary."""
    return sorted(ByteLevel.alphabet())
