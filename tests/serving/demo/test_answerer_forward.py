"""The batched forward pass of the training, held to Hugging Face's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from serving.demo import seeds
from serving.demo.answerer import MODEL_FOLDER, build_model
from serving.demo.answerer_data import collate, make_sample, make_tokenizer
from serving.demo.answerer_forward import Batch, Teacher, losses, plain, read, rope_positions
from serving.demo.answerer_slots import sample_slot
from serving.demo.world import LABELS


@pytest.fixture(scope="module")
def tokenizer() -> Qwen3_5Tokenizer:
    """The answerer's tokenizer."""
    torch.set_num_threads(1)
    return make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Qwen3_5Tokenizer) -> Qwen3_5ForConditionalGeneration:
    """An untrained answerer."""
    torch.manual_seed(5)
    return build_model(tokenizer)


@pytest.fixture(scope="module", params=[(128, 224), (128, 192)], ids=["wide", "narrow"])
def batch(request: pytest.FixtureRequest, tokenizer: Qwen3_5Tokenizer) -> Batch:
    """Three slots with prompts of different lengths."""
    slots = [sample_slot(seeds.generator(seeds.TRAIN, number), request.param, two_share=1) for number in range(3)]
    return collate([make_sample(tokenizer, slot) for slot in slots])


def test_the_batched_pass_equals_the_models_own(model: Qwen3_5ForConditionalGeneration, batch: Batch) -> None:
    """Logits of each slot, without its padding, are those of `Qwen3_5ForConditionalGeneration` within 1e-4."""
    pictures = Qwen2VLImageProcessorPil.from_pretrained(MODEL_FOLDER)
    with torch.no_grad():
        hidden, _ = read(model, batch, plain())
        fast = model.lm_head(hidden)
        for index, tokens in enumerate(batch.tokens):
            length = int((batch.targets[index] >= 0).nonzero().max()) + 2
            ids = tokens[None, :length]
            seen = pictures([Image.fromarray(image.numpy()) for image in batch.images[index]], return_tensors="pt")
            is_image = (ids == model.config.image_token_id).int()
            slow = model(input_ids=ids, mm_token_type_ids=is_image, **seen).logits[0]
            assert float((fast[index, :length] - slow).abs().max()) < 1e-4


def test_only_the_answer_is_learned_and_its_action_counts_three_times(
    tokenizer: Qwen3_5Tokenizer, batch: Batch
) -> None:
    """Targets spell the answer and its end, nothing else; exactly one of them, the action, has weight 3."""
    for tokens, targets, weights, action in zip(batch.tokens, batch.targets, batch.weights, batch.action, strict=True):
        written = targets[targets >= 0]
        name = (*LABELS, "none")[int(action)]
        assert str(tokenizer.decode(written)).startswith(f'{{"action":"{name}","description":"')
        assert int(written[-1]) == tokenizer.eos_token_id
        assert torch.equal(tokens[1:][targets[:-1] >= 0], written)
        assert [name] == tokenizer.convert_ids_to_tokens(targets[weights == 3])
        assert float(weights.sum()) == len(written) + 2


def test_every_part_of_the_loss_reaches_the_vision_tower(model: Qwen3_5ForConditionalGeneration, batch: Batch) -> None:
    """Each teacher, and the answer, has a gradient in the first vision block."""
    torch.manual_seed(1)
    teacher = Teacher(model.model.language_model.config.hidden_size, len(LABELS))
    weight = model.model.visual.blocks[0].mlp.linear_fc1.weight
    parts = losses(model, teacher, batch, plain())
    for part in (parts.answer, parts.action, parts.points, parts.persons, parts.pooled):
        (gradient,) = torch.autograd.grad(part, weight, retain_graph=True)
        assert float(gradient.abs().max()) > 0
    assert 0 <= float(parts.right) <= 1


def test_a_scene_without_people_has_a_finite_loss(
    model: Qwen3_5ForConditionalGeneration, tokenizer: Qwen3_5Tokenizer
) -> None:
    """Nobody to point at is no division by zero."""
    empty = next(
        slot
        for slot in (sample_slot(seeds.generator(seeds.TRAIN, number), (128, 224)) for number in range(100))
        if not any(slot.persons)
    )
    torch.manual_seed(1)
    teacher = Teacher(model.model.language_model.config.hidden_size, len(LABELS))
    parts = losses(model, teacher, collate([make_sample(tokenizer, empty)]), plain())
    assert torch.isfinite(torch.stack([parts.answer, parts.points, parts.persons, parts.pooled])).all()
    assert float(parts.persons.detach()) == 0


def test_rope_positions_step_over_an_image_by_its_longer_side() -> None:
    """A 2 by 3 image at position 1: rows and columns count from there, and the text goes on at 1 + 3."""
    is_image = np.array([False, *[True] * 6, False])
    expected = [[0, 1, 1, 1, 1, 1, 1, 4], [0, 1, 1, 1, 2, 2, 2, 4], [0, 1, 2, 3, 1, 2, 3, 4]]
    assert expected == rope_positions(is_image, (2, 3)).tolist()
