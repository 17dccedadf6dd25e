"""The answerer's files: tokenizer, chat template, image sizes, and that plain transformers can load and run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor, AutoTokenizer

from pipeline_ver2.config import PipelineConfig
from pipeline_ver2.prompts import NOBODY, Question, build_messages
from serving.demo import seeds
from serving.demo.answerer import MODEL_FOLDER, Answerer, build_model, load, save, with_pads
from serving.demo.answerer_data import make_tokenizer, model_size
from serving.demo.answerer_slots import question_of, sample_slot
from serving.demo.answerer_tokenizer import IMAGE_PAD, TURN_END, turns
from serving.demo.world import LABELS

SETTINGS = PipelineConfig()


@pytest.fixture(scope="module")
def shipped() -> Answerer:
    """The answerer as it is shipped."""
    torch.set_num_threads(1)
    return load()


@pytest.fixture
def question() -> Question:
    """A slot as the product asks about it."""
    return question_of(sample_slot(seeds.generator(seeds.TRAIN, 3), (360, 640)), SETTINGS)


@pytest.mark.parametrize("action", [*LABELS, NOBODY])
def test_each_action_is_one_token_of_its_own(shipped: Answerer, action: str) -> None:
    """In an answer the action stands alone in one token, so that its probability is that of the action."""
    answer = json.dumps({"action": action, "description": "One person."}, separators=(",", ":"))
    tokens = shipped.tokenizer.convert_ids_to_tokens(shipped.tokenizer(answer)["input_ids"])
    assert tokens.count(action) == 1
    assert tokens[tokens.index(action) - 1].endswith('"')


def test_any_text_survives_the_tokenizer(shipped: Answerer) -> None:
    """Bytes that no prompt of the demo holds are still in the vocabulary."""
    text = "Größe ≥ 3 €, 走る 🙂 \t\r\n{}"
    assert text == shipped.tokenizer.decode(shipped.tokenizer(text)["input_ids"])


def test_the_chat_template_renders_the_products_messages(shipped: Answerer, question: Question) -> None:
    """Every text of the messages is there in its order, with one pad for each image, and the answer may begin."""
    text = turns(shipped.tokenizer, build_messages(question, SETTINGS))
    assert text.count(f"<|vision_start|>{IMAGE_PAD}<|vision_end|>") == len(question.images)
    assert text.startswith("<|im_start|>system\nYou check the findings")
    assert text.endswith(f"choose the most notable action.{TURN_END}\n<|im_start|>assistant\n")
    assert text.index("Frame 1") < text.index("Frame 2") < text.index("Frame 3") < text.index("Detector findings")


def test_the_template_takes_plain_text_and_other_image_parts(shipped: Answerer) -> None:
    """A string is as good as a list of parts, and `image` as good as `image_url`."""
    parts = [{"type": "image", "image": None}, {"type": "text", "text": "Who?"}]
    for content in ("Who?", parts):
        text = turns(shipped.tokenizer, [{"role": "user", "content": content}])
        assert text.endswith(f"Who?{TURN_END}\n<|im_start|>assistant\n")
    assert IMAGE_PAD in text


@pytest.mark.parametrize(
    ("video", "expected"),
    [
        ((360, 640), (128, 224)),
        ((432, 768), (128, 224)),
        ((576, 1024), (128, 224)),
        ((480, 640), (128, 192)),
        ((256, 340), (128, 192)),
        ((224, 224), (160, 160)),
        ((64, 64), (160, 160)),
    ],
)
def test_pictures_get_the_size_the_model_was_trained_on(
    shipped: Answerer, video: tuple[int, int], expected: tuple[int, int]
) -> None:
    """The image processor of the folder brings usual videos to the sizes of the training."""
    from PIL import Image

    grid = shipped.pictures(Image.new("RGB", video[::-1]), return_tensors="pt")["image_grid_thw"][0].tolist()
    assert [1, expected[0] // 16, expected[1] // 16] == grid
    assert expected == model_size(*video)


def test_the_auto_classes_find_the_same_parts(shipped: Answerer) -> None:
    """Whoever loads the folder by the Auto classes gets the same tokenizer and the same image settings."""
    prompt = "Detector findings: frame 1: walk 0.83/run 0.31"
    assert shipped.tokenizer(prompt)["input_ids"] == AutoTokenizer.from_pretrained(MODEL_FOLDER)(prompt)["input_ids"]
    automatic: Any = AutoImageProcessor  # has no types
    assert shipped.pictures.size == automatic.from_pretrained(MODEL_FOLDER, backend="pil").size


def test_the_shipped_files_are_small_and_name_what_vllm_needs() -> None:
    """The folder says architecture and dtype, has no foreign files, and weighs at most 4.5 MB."""
    config = json.loads((MODEL_FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert config["dtype"] == "bfloat16"
    assert config["text_config"]["linear_key_head_dim"] == config["text_config"]["linear_value_head_dim"] == 128
    assert sum(file.stat().st_size for file in MODEL_FOLDER.iterdir()) <= 4_500_000


def test_a_saved_model_loads_and_answers(tmp_path: Path, question: Question) -> None:
    """What `save` writes is whole: it loads, and an untrained model runs to the limit of tokens or stops."""
    torch.manual_seed(1)
    tokenizer = make_tokenizer()
    model = build_model(tokenizer)
    save(model, tokenizer, tmp_path)
    loaded = load(tmp_path, torch.float32)
    name = "model.language_model.layers.1.self_attn.q_proj.weight"
    saved, read = model.state_dict()[name].bfloat16(), loaded.model.state_dict()[name].bfloat16()
    assert torch.equal(saved, read)
    assert torch.equal(loaded.model.lm_head.weight, loaded.model.model.language_model.embed_tokens.weight)
    choice = loaded.answer(question, SETTINGS, max_tokens=3)["choices"][0]
    assert choice["finish_reason"] in {"stop", "length"}


def test_the_tokenizer_is_always_the_same(shipped: Answerer) -> None:
    """Training it again gives the shipped vocabulary."""
    assert shipped.tokenizer.get_vocab() == make_tokenizer().get_vocab()


def test_pads_are_counted_image_by_image() -> None:
    """The first image's pad is repeated by the first count, and so on."""
    assert f"a{IMAGE_PAD}b{IMAGE_PAD * 3}c" == with_pads(f"a{IMAGE_PAD}b{IMAGE_PAD}c", [1, 3])
    with pytest.raises(ValueError, match="zip"):
        with_pads(f"a{IMAGE_PAD}", [1, 2])


def test_the_answer_depends_on_the_pictures(shipped: Answerer, question: Question) -> None:
    """The model does not only read the findings: black pictures change the scores of its first words."""
    inputs = shipped.inputs(question, SETTINGS)
    with torch.inference_mode():
        seen = shipped.model(**inputs).logits[0, -1]
        black = shipped.model(**{**inputs, "pixel_values": torch.full_like(inputs["pixel_values"], -1)}).logits[0, -1]
    assert np.abs((seen - black).float().numpy()).max() > 1e-3
