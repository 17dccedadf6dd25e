"""An untrained vision-language model of the real kind: Qwen3.5's architecture with a few hundred thousand weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
_TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message['role'] }}\n"
    "{%- if message['role'] == 'assistant' and loop.first -%}{{ raise_exception('the user comes first') }}{%- endif -%}"
    "{%- if message['content'] is string -%}{{ message['content'] }}{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{{ part['text'] if part['type'] == 'text' else '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- endfor -%}{%- endif -%}<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{{ '<think>' if enable_thinking else '' }}{%- endif -%}"
)
CONTEXT = 2048


def write_answerer(folder: Path) -> Path:
    """Write the model with its tokenizer of single bytes and its image processor; always the same weights."""
    tokenizer = _tokenizer()
    torch.manual_seed(1)
    model: Any = Qwen3_5ForConditionalGeneration(_config(tokenizer))
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pixels = {"size": {"shortest_edge": 4096, "longest_edge": 4096}, "patch_size": 16, "merge_size": 2}
    kind = {"image_processor_type": "Qwen2VLImageProcessorFast", "temporal_patch_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps({**kind, **pixels}))
    return folder


def _tokenizer() -> Any:  # noqa: ANN401 - untyped library
    build: Any = Qwen3_5Tokenizer
    vocabulary = {symbol: at for at, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = build(vocab=vocabulary, merges=[], eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIALS], special_tokens=True)
    tokenizer.add_tokens([AddedToken("walk", special=False, normalized=False)])
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _config(tokenizer: Any) -> Qwen3_5Config:  # noqa: ANN401 - untyped library
    text = {
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 1.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 64,
        "initializer_range": 0.2,
    }
    names = {"image_token_id": "<|image_pad|>", "vision_start_token_id": "<|vision_start|>"}
    names |= {"vision_end_token_id": "<|vision_end|>"}
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()}
    return Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True, video_token_id=0, **ids)
