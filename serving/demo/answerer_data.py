"""Training batches for the answerer: slots of the demo world as tensors, endless, the same for the same seeds.

Most pictures are drawn small and shrunk to the model's size, which is quick; a share takes the product's exact path
(drawn large, JPEG, decoded, shrunk). Every slot is used twice: once as drawn, once mirrored, recoloured and with other
findings.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from pipeline_ver2.config import PipelineConfig
from pipeline_ver2.prompts import NOBODY, build_messages, encode_image
from serving.demo import seeds
from serving.demo.answerer import LEAST_PX, MOST_PX, with_pads
from serving.demo.answerer_forward import MERGED_PX, Batch, rope_positions
from serving.demo.answerer_slots import (
    IMAGES,
    WRONG_SHARE,
    Frame,
    Slot,
    question_with,
    sample_findings,
    sample_slot,
)
from serving.demo.answerer_tokenizer import IMAGE_PAD, TURN_END, build_tokenizer, turns
from serving.demo.skeleton import JOINTS
from serving.demo.world import LABELS, VISIBLE, Person, sample_aspect

_EXACT_SHARE = 0.12
# Sizes of videos and of quick drawings, (height, width), by width over height.
_WIDE_VIDEOS = ((360, 640), (360, 640), (432, 768))
_NARROW_VIDEOS = ((256, 340), (480, 640))
_WIDE_QUICK, _NARROW_QUICK = (192, 342), (192, 256)
_ACTION_WEIGHT = 3.0
_CORPUS_SLOTS = 400
_CORPUS_SIZE = (36, 64)
_PERSONS = 2
# Linear attention works in chunks of 64 anyway, and each length is compiled anew.
_LENGTH_STEP = 64
_SWAPPED = [JOINTS.index(_mirror_name) for _mirror_name in (
    name.replace("left", "?").replace("right", "left").replace("?", "right") for name in JOINTS
)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One slot as arrays; names and shapes are those of `Batch` without its first axis, lengths not yet padded."""

    images: NDArray[np.uint8]
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    image_at: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    action: int
    joints: NDArray[np.float32]
    acts: NDArray[np.int64]
    overall: NDArray[np.int64]


def make_tokenizer() -> Qwen3_5Tokenizer:
    """The answerer's tokenizer, trained on prompts and answers of the demo world."""
    slots = (sample_slot(seeds.generator(seeds.TRAIN, index), _CORPUS_SIZE) for index in range(_CORPUS_SLOTS))
    corpus = (text for slot in slots for text in (*_words(slot), slot.truth.answer))
    return build_tokenizer(LABELS, corpus)


def model_size(height: int, width: int) -> tuple[int, int]:
    """`(height, width)` to which the image processor brings a picture."""
    size: tuple[int, int] = smart_resize(height, width, MERGED_PX, LEAST_PX, MOST_PX)
    return size


def batches(tokenizer: Qwen3_5Tokenizer, size: int, start: int, two_share: Iterable[float]) -> Iterator[Batch]:
    """Endless training batches.

    Args:
        tokenizer: The answerer's.
        size: Slots in a batch; half of them are drawn anew.
        start: Number of the first batch; a batch depends on its number, and in its mirrored half on those before.
        two_share: Share of scenes with two people, batch by batch.
    """
    before: dict[bool, list[Slot]] = {}
    fresh = size // 2
    for number, share in enumerate(two_share, start):
        rng = seeds.generator(seeds.TRAIN, 1_000_000 + number * fresh)
        wide = sample_aspect(rng) > 1.5
        exact = bool(rng.random() < _EXACT_SHARE)
        drawn = [
            _small_slot(seeds.generator(seeds.TRAIN, 1_000_000 + number * fresh + index), share, wide=wide, exact=exact)
            for index in range(fresh)
        ]
        again = [mirrored(rng, slot) for slot in before.get(wide, drawn)]
        before[wide] = drawn
        yield collate([make_sample(tokenizer, slot) for slot in (*drawn, *again)])


def fixed_batches(tokenizer: Qwen3_5Tokenizer, size: int, count: int) -> list[Batch]:
    """Batches of the exact path that training never sees, to watch it by."""
    first = len(seeds.TRAIN) - size * count
    made = []
    for number in range(count):
        wide = number % 5 != 4
        generators = [seeds.generator(seeds.TRAIN, first + number * size + index) for index in range(size)]
        slots = [_small_slot(rng, 0.35, wide=wide, exact=True) for rng in generators]
        made.append(collate([make_sample(tokenizer, slot) for slot in slots]))
    return made


def mirrored(rng: np.random.Generator, slot: Slot) -> Slot:
    """The slot seen in a mirror, its colours permuted, with newly drawn findings."""
    colours = rng.permutation(3)
    persons = tuple(tuple(_mirrored_person(person) for person in picture) for picture in slot.persons)
    found = sample_findings(rng, persons, wrong=bool(rng.random() < WRONG_SHARE))
    kept = [index - sum(slot.repeated[1 : index + 1]) for index in range(len(slot.frames))]
    return replace(
        slot,
        frames=tuple(np.ascontiguousarray(frame[:, ::-1, colours]) for frame in slot.frames),
        persons=persons,
        findings=tuple(found[index] for index in kept),
    )


def make_sample(tokenizer: Qwen3_5Tokenizer, slot: Slot) -> Sample:
    """A slot, whose frames are already of the model's size, as arrays."""
    height, width = slot.frames[0].shape[:2]
    grid = (height // MERGED_PX, width // MERGED_PX)
    asked, answered = (tokenizer(text)["input_ids"] for text in _texts(tokenizer, slot, grid[0] * grid[1]))
    tokens = np.array(asked + answered)
    is_image = tokens == tokenizer.convert_tokens_to_ids(IMAGE_PAD)
    targets = np.full(len(tokens), -100)
    targets[len(asked) - 1 : -1] = answered
    weights = (targets >= 0).astype(np.float32)
    action_at = len(asked) - 1 + answered.index(tokenizer.convert_tokens_to_ids(slot.truth.action))
    weights[action_at] = _ACTION_WEIGHT
    joints, acts, overall = _teaching(slot, (width, height))
    return Sample(
        images=np.stack(slot.frames),
        tokens=tokens,
        positions=rope_positions(is_image, grid),
        image_at=np.flatnonzero(is_image),
        targets=targets,
        weights=weights,
        action=(*LABELS, NOBODY).index(slot.truth.action),
        joints=joints,
        acts=acts,
        overall=overall,
    )


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples with images of one size as a batch, padded at the right to few different lengths."""
    longest = max(len(sample.tokens) for sample in samples)
    length = -(-longest // _LENGTH_STEP) * _LENGTH_STEP

    def padded(arrays: Iterable[NDArray[Any]], fill: float) -> torch.Tensor:
        rows = [
            np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])], constant_values=fill)
            for array in arrays
        ]
        return torch.from_numpy(np.stack(rows))

    def stacked(arrays: Iterable[NDArray[Any]]) -> torch.Tensor:
        return torch.from_numpy(np.stack(list(arrays)))

    return Batch(
        images=stacked(sample.images for sample in samples),
        tokens=padded((sample.tokens for sample in samples), 0),
        positions=padded((sample.positions for sample in samples), 0).transpose(0, 1).contiguous(),
        image_at=stacked(sample.image_at for sample in samples),
        targets=padded((sample.targets for sample in samples), -100),
        weights=padded((sample.weights for sample in samples), 0),
        action=torch.tensor([sample.action for sample in samples]),
        joints=stacked(sample.joints for sample in samples),
        acts=stacked(sample.acts for sample in samples),
        overall=stacked(sample.overall for sample in samples),
    )


def _small_slot(rng: np.random.Generator, two_share: float, *, wide: bool, exact: bool) -> Slot:
    """A slot with frames of the model's size."""
    videos = _WIDE_VIDEOS if wide else _NARROW_VIDEOS
    video = videos[rng.integers(len(videos))]
    quick = _WIDE_QUICK if wide else _NARROW_QUICK
    slot = sample_slot(rng, video if exact else quick, two_share=two_share)
    settings = PipelineConfig()
    frames = [_as_sent(frame, settings) for frame in slot.frames] if exact else slot.frames
    return replace(slot, frames=tuple(_shrunk(frame, model_size(*video)) for frame in frames))


def _as_sent(frame: Frame, settings: PipelineConfig) -> Frame:
    jpeg = encode_image(frame, max_px=settings.image_max_px, quality=settings.jpeg_quality)
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


def _shrunk(frame: Frame, size: tuple[int, int]) -> Frame:
    return np.asarray(Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def _words(slot: Slot) -> list[str]:
    messages = build_messages(question_with(slot, [b""] * IMAGES), PipelineConfig())
    return [
        "\n".join(part["text"] for part in messages[1]["content"] if part["type"] == "text"),
        "system\nuser\nassistant",
    ]


def _texts(tokenizer: Qwen3_5Tokenizer, slot: Slot, merged: int) -> tuple[str, str]:
    """Prompt and answer as the model reads and writes them; the text does not depend on the pictures' bytes."""
    prompt = turns(tokenizer, build_messages(question_with(slot, [b""] * IMAGES), PipelineConfig()))
    return with_pads(prompt, [merged] * IMAGES), slot.truth.answer + TURN_END


def _teaching(slot: Slot, size: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """`(joints, acts, overall)` of a slot; `size` is `(width, height)`."""
    joints = np.full((IMAGES, _PERSONS, len(JOINTS), 2), np.nan, np.float32)
    acts = np.full((IMAGES, _PERSONS), -100)
    overall = np.full(_PERSONS, -100)
    for image, picture in enumerate(slot.persons):
        for person in picture:
            if person.visible > VISIBLE and person.actor < _PERSONS:
                joints[image, person.actor] = person.joints * size
                acts[image, person.actor] = LABELS.index(person.action)
    for actor, action in slot.truth.actors.items():
        overall[actor] = LABELS.index(action)
    return joints, acts, overall


def _mirrored_person(person: Person) -> Person:
    x1, y1, x2, y2 = person.box
    joints = person.joints[_SWAPPED] * (-1, 1) + (1, 0)
    return replace(person, box=(1 - x2, y1, 1 - x1, y2), joints=joints)
