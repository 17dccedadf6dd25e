"""The embedded answerer: a small Qwen3.5 vision-language model for the demo world, and how to load it.

It lies in ``serving/demo/models/answerer`` in Hugging Face's format, in bfloat16. vLLM serves the folder as it is
(``--dtype bfloat16``); plain transformers needs no torchvision::

    tokenizer = AutoTokenizer.from_pretrained(folder)
    pictures = Qwen2VLImageProcessorPil.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16).eval()

    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    seen = pictures(images, return_tensors="pt")              # PIL images, in the order of the messages
    for grid in seen["image_grid_thw"]:                       # one pad per image becomes one per merged token
        text = text.replace("<|image_pad|>", "<|pad|>" * (int(grid.prod()) // pictures.merge_size**2), 1)
    read = tokenizer(text.replace("<|pad|>", "<|image_pad|>"), return_tensors="pt")
    is_image = (read["input_ids"] == model.config.image_token_id).int()
    out = model.generate(**read, **seen, mm_token_type_ids=is_image, max_new_tokens=160, do_sample=False)
    answer = tokenizer.decode(out[0, read["input_ids"].shape[1] :], skip_special_tokens=True)

`Answerer` does exactly that.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from pipeline_ver2.config import PipelineConfig
from pipeline_ver2.prompts import Question, build_messages
from serving.demo.answerer_tokenizer import (
    END_OF_TEXT,
    IMAGE_PAD,
    TURN_END,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
    save_tokenizer,
    turns,
)

MODEL_FOLDER = Path(__file__).parent / "models" / "answerer"
# Budgets in pixels: 16:9 becomes 224x128, 4:3 becomes 192x128, a square 160x160.
LEAST_PX, MOST_PX = 24_576, 32_768

_WIDTH = 128
_IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "size": {"shortest_edge": LEAST_PX, "longest_edge": MOST_PX},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


@dataclass(frozen=True, slots=True)
class Answerer:
    """A loaded answerer: tokenizer, image processor and model."""

    tokenizer: Any
    pictures: Any
    model: Any

    def answer(self, question: Question, settings: PipelineConfig, max_tokens: int = 64) -> dict[str, Any]:
        """Ask about one slot, greedily.

        Returns:
            A chat completion with one choice, as `prompts.read_answer` takes it.
        """
        inputs = self.inputs(question, settings)
        with torch.inference_mode():
            out = self.model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        written = out[0, inputs["input_ids"].shape[1] :]
        ended = int(written[-1]) == self.tokenizer.eos_token_id
        text = self.tokenizer.decode(written, skip_special_tokens=True)
        return {"choices": [{"message": {"content": text}, "finish_reason": "stop" if ended else "length"}]}

    def inputs(self, question: Question, settings: PipelineConfig) -> dict[str, torch.Tensor]:
        """The tensors `generate` takes for a slot."""
        images = [Image.open(io.BytesIO(image.jpeg)).convert("RGB") for image in question.images]
        seen = self.pictures(images, return_tensors="pt")
        text = turns(self.tokenizer, build_messages(question, settings))
        counts = [int(grid.prod()) // self.pictures.merge_size**2 for grid in seen["image_grid_thw"]]
        read = self.tokenizer(with_pads(text, counts), return_tensors="pt")
        is_image = (read["input_ids"] == self.model.config.image_token_id).int()
        return {**read, **seen, "mm_token_type_ids": is_image}


def load(folder: Path = MODEL_FOLDER, dtype: torch.dtype = torch.bfloat16) -> Answerer:
    """Load a saved answerer.

    Raises:
        OSError: The folder lacks a file.
    """
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    model.train(mode=False)
    pictures = Qwen2VLImageProcessorPil.from_pretrained(folder)
    return Answerer(AutoTokenizer.from_pretrained(folder), pictures, model)


def build_model(tokenizer: Qwen3_5Tokenizer) -> Qwen3_5ForConditionalGeneration:
    """An untrained model in float32 for the tokenizer's vocabulary."""
    model = Qwen3_5ForConditionalGeneration(_config(tokenizer))
    model.train(mode=False)
    return model


def save(model: Qwen3_5ForConditionalGeneration, tokenizer: Qwen3_5Tokenizer, folder: Path) -> None:
    """Write everything transformers and vLLM need into a folder, weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**model.config.to_dict(), "architectures": ["Qwen3_5ForConditionalGeneration"], "dtype": "bfloat16"}
    _write_json(folder / "config.json", config)
    _write_json(folder / "preprocessor_config.json", _IMAGE_PROCESSOR)
    ends = [tokenizer.convert_tokens_to_ids(token) for token in (TURN_END, END_OF_TEXT)]
    _write_json(folder / "generation_config.json", {"eos_token_id": ends, "pad_token_id": ends[1], "do_sample": False})
    save_tokenizer(tokenizer, folder)


def with_pads(text: str, counts: Sequence[int]) -> str:
    """Repeat the i-th image's one pad `counts[i]` times."""
    parts = text.split(IMAGE_PAD)
    return parts[0] + "".join(IMAGE_PAD * count + part for count, part in zip(counts, parts[1:], strict=True))


def _config(tokenizer: Qwen3_5Tokenizer) -> Qwen3_5Config:
    ids = tokenizer.get_vocab()
    text = {
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "hidden_size": _WIDTH,
        "intermediate_size": 320,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "full_attention_interval": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 4096,
        "initializer_range": 0.04,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 4,
        "hidden_size": _WIDTH,
        "intermediate_size": 384,
        "num_heads": 4,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": _WIDTH,
        "num_position_embeddings": 64,
        "initializer_range": 0.04,
    }
    return Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        image_token_id=ids[IMAGE_PAD],
        video_token_id=ids[VIDEO_PAD],
        vision_start_token_id=ids[VISION_START],
        vision_end_token_id=ids[VISION_END],
        tie_word_embeddings=True,
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
