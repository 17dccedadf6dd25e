"""The answerer's forward pass for training: one batched pass over equal images, losses on the answer only.

It uses the modules of the Hugging Face model, but as one batch: theirs attends image by image and builds masks
that equal sizes and right padding make needless. A test holds both to the same logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import _dynamo as dynamo
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5VisionBlock,
    Qwen3_5VisionModel,
)
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from serving.demo.answerer_delta import delta_attention
from serving.demo.skeleton import JOINTS as JOINT_NAMES

MERGED_PX = 32
JOINTS = len(JOINT_NAMES)
_PATCH_PX = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of slots with images of one size.

    Attributes:
        images: `(B, 3, H, W, 3)` uint8 RGB, already of the processor's size.
        tokens: `(B, L)` int64, padded at the right.
        positions: `(3, B, L)` int64, rope positions for time, height and width.
        image_at: `(B, 3 * M)` int64, where each slot's image tokens stand; M tokens an image.
        targets: `(B, L)` int64, the token that follows, -100 outside the answer.
        weights: `(B, L)` float32, weight of each target.
        action: `(B,)` int64, index of the right action, or the number of actions for none.
        joints: `(B, 3, P, J, 2)` float32, pixels of the image; NaN where there is no person or it is hidden.
        acts: `(B, 3, P)` int64, each person's action in that image, -100 where there is none.
        overall: `(B, P)` int64, each person's action over the slot, -100 where it does not count.
    """

    images: Tensor
    tokens: Tensor
    positions: Tensor
    image_at: Tensor
    targets: Tensor
    weights: Tensor
    action: Tensor
    joints: Tensor
    acts: Tensor
    overall: Tensor


@dataclass(frozen=True, slots=True)
class Losses:
    """The parts of the loss, each a scalar, and how many actions were right in the batch."""

    answer: Tensor
    action: Tensor
    points: Tensor
    persons: Tensor
    pooled: Tensor
    right: Tensor


class Teacher(nn.Module):
    """Heads that teach the model where limbs are and who does what; thrown away after training."""

    def __init__(self, width: int, actions: int) -> None:
        super().__init__()
        self.actions = actions
        self.points = nn.Linear(width, JOINTS * 3)
        self.seen = nn.Linear(width, actions)
        self.understood = nn.Linear(width, actions)
        self.pooled = nn.Linear(width, actions + 1)
        nn.init.constant_(self.points.bias[:JOINTS], -3.0)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How the two kinds of block are run; `compiled()` takes half the time of `Blocks()` and needs a C++ compiler."""

    vision: Callable[[Qwen3_5VisionBlock, Tensor, Tensor, Tensor], Tensor]
    text: Callable[[Qwen3_5DecoderLayer, Tensor, Tensor, Tensor], Tensor]


def plain() -> Blocks:
    """Blocks as they are."""
    return Blocks(_vision_block, _text_layer)


def compiled() -> Blocks:
    """Compiled blocks; one graph serves all blocks of a kind, but each new shape costs tens of seconds."""
    dynamo.config.recompile_limit = 32
    return Blocks(torch.compile(_vision_block, dynamic=False), torch.compile(_text_layer, dynamic=False))


def see(model: Qwen3_5ForConditionalGeneration, images: Tensor, blocks: Blocks) -> Tensor:
    """Merged vision tokens.

    Args:
        model: `Qwen3_5ForConditionalGeneration`.
        images: `(N, H, W, 3)` uint8 RGB, sides multiples of 32.
        blocks: How blocks are run.

    Returns:
        `(N, M, width)`, M = H / 32 * W / 32, row by row.
    """
    visual = model.model.visual
    height, width = images.shape[1] // _PATCH_PX, images.shape[2] // _PATCH_PX
    squares = images.reshape(len(images), height // 2, 2, _PATCH_PX, width // 2, 2, _PATCH_PX, 3)
    patches = squares.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(len(images), height * width, -1)
    pixels = patches.float() * (2 / 255) - 1
    kernel = visual.patch_embed.proj.weight.sum(2).flatten(1)
    hidden = functional.linear(pixels, kernel, visual.patch_embed.proj.bias)
    place, cos, sin = _places(visual, height, width)
    hidden = hidden + place
    for block in visual.blocks:
        hidden = blocks.vision(block, hidden, cos, sin)
    merged: Tensor = visual.merger(hidden.reshape(-1, hidden.shape[-1]))
    return merged.reshape(len(images), height * width // 4, -1)


def read(model: Qwen3_5ForConditionalGeneration, batch: Batch, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Hidden states of the text, `(B, L, width)`, and the vision tokens, `(B, 3 * M, width)`."""
    language = model.model.language_model
    seen = see(model, batch.images.flatten(0, 1), blocks).reshape(len(batch.images), -1, language.config.hidden_size)
    embedded = language.embed_tokens(batch.tokens)
    index = batch.image_at.unsqueeze(-1).expand(-1, -1, embedded.shape[-1])
    hidden = embedded.scatter(1, index, seen.to(embedded.dtype))
    cos, sin = language.rotary_emb(hidden, batch.positions)
    # The fused kernel's backward pass is several times slower than the plain one at these lengths.
    with sdpa_kernel(SDPBackend.MATH):
        for layer in language.layers:
            hidden = blocks.text(layer, hidden, cos, sin)
    return language.norm(hidden), seen


def losses(model: Qwen3_5ForConditionalGeneration, teacher: Teacher, batch: Batch, blocks: Blocks) -> Losses:
    """All parts of the loss for a batch."""
    hidden, seen = read(model, batch, blocks)
    chosen = batch.targets >= 0
    logits = functional.linear(hidden[chosen], model.model.language_model.embed_tokens.weight).float()
    wanted, weights = batch.targets[chosen], batch.weights[chosen]
    each = functional.cross_entropy(logits, wanted, reduction="none")
    is_action = weights > 1
    cells = batch.image_at.shape[1] // 3
    grid = (batch.images.shape[2] // MERGED_PX, batch.images.shape[3] // MERGED_PX)
    index = batch.image_at.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
    understood = hidden.gather(1, index)
    persons = _person_loss(teacher.seen(seen), batch, batch.acts, grid)
    overall = batch.overall.unsqueeze(1).expand(-1, 3, -1).clone()
    overall[:, :2] = -100
    persons = persons + _person_loss(teacher.understood(understood), batch, overall, grid)
    pooled = seen.reshape(len(seen), 3, cells, -1).mean(2).amax(1)
    return Losses(
        answer=(each * weights).sum() / weights.sum(),
        action=each[is_action].mean(),
        points=_point_loss(teacher.points(seen).float(), batch.joints, grid),
        persons=persons,
        pooled=functional.cross_entropy(teacher.pooled(pooled).float(), batch.action),
        right=(logits[is_action].argmax(-1) == wanted[is_action]).float().mean(),
    )


def rope_positions(is_image: NDArray[np.bool_], grid: tuple[int, int]) -> NDArray[np.int64]:
    """Rope positions of a sequence with images of one size.

    Args:
        is_image: `(L,)`, which tokens are image tokens.
        grid: Rows and columns of merged tokens in an image.

    Returns:
        `(3, L)`: time, height, width.
    """
    rows, columns = grid
    positions = np.zeros((3, len(is_image)), np.int64)
    index, position = 0, 0
    image = np.stack([np.zeros(rows * columns, np.int64), *np.divmod(np.arange(rows * columns), columns)])
    while index < len(is_image):
        if is_image[index]:
            positions[:, index : index + rows * columns] = image + position
            index, position = index + rows * columns, position + max(rows, columns)
        else:
            positions[:, index] = position
            index, position = index + 1, position + 1
    return positions


def _vision_block(block: Qwen3_5VisionBlock, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    attention = block.attn
    count, length, width = hidden.shape
    mixed = attention.qkv(block.norm1(hidden)).reshape(count, length, 3, attention.num_heads, -1)
    query, key, value = mixed.permute(2, 0, 3, 1, 4)
    cos, sin = cos.to(query.dtype), sin.to(query.dtype)
    query, key = _turn(query, cos, sin), _turn(key, cos, sin)
    shares = torch.softmax((query * attention.scaling) @ key.transpose(-1, -2), -1).to(value.dtype)
    hidden = hidden + attention.proj((shares @ value).transpose(1, 2).reshape(count, length, width))
    out: Tensor = hidden + block.mlp(block.norm2(hidden))
    return out


def _text_layer(layer: Qwen3_5DecoderLayer, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    normed = layer.input_layernorm(hidden)
    if layer.block_type == "full_attention":
        hidden = hidden + layer.self_attn(normed, position_embeddings=(cos, sin), attention_mask=None)[0]
    else:
        hidden = hidden + delta_attention(layer.linear_attn, normed)
    out: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return out


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _places(visual: Qwen3_5VisionModel, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Learned positions `(P, width)`, and cos and sin `(P, head_dim)`, for a grid of patches."""
    grid = torch.tensor([[1, height, width]])
    taps, shares = get_vision_interpolation_indices_and_weights(
        grid, num_grid_per_side=visual.num_grid_per_side, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    place = (visual.pos_embed(taps) * shares[:, :, None]).sum(1)
    cos, sin = visual.rotary_pos_emb(place, get_vision_position_ids(grid, 2))
    return place, cos, sin


def _cells(points: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Index of the merged token that holds each point, and whether one does."""
    rows, columns = grid
    cell = (torch.nan_to_num(points, nan=-1e4) / MERGED_PX).floor().long()
    inside = (cell[..., 0] >= 0) & (cell[..., 0] < columns) & (cell[..., 1] >= 0) & (cell[..., 1] < rows)
    return torch.where(inside, cell[..., 1] * columns + cell[..., 0], 0), inside


def _point_loss(guess: Tensor, joints: Tensor, grid: tuple[int, int]) -> Tensor:
    """Is joint j in this cell (cross-entropy), and where in it (L1)."""
    batch, frames, persons = joints.shape[:3]
    cells = grid[0] * grid[1]
    guess = guess.reshape(batch * frames, cells, JOINTS, 3)
    cell, inside = _cells(joints.reshape(batch * frames, persons, JOINTS, 2), grid)
    frame, person, joint = inside.nonzero(as_tuple=True)
    at = cell[frame, person, joint]
    there = torch.zeros(guess.shape[:3])
    there[frame, at, joint] = 1
    presence = functional.binary_cross_entropy_with_logits(guess[..., 0], there, reduction="sum")
    point = joints.reshape(batch * frames, persons, JOINTS, 2)[frame, person, joint]
    offset = guess[frame, at, joint, 1:] - (point / MERGED_PX).frac()
    return (presence + offset.abs().sum()) / max(1, len(frame))


def _person_loss(guess: Tensor, batch: Batch, wanted: Tensor, grid: tuple[int, int]) -> Tensor:
    """Cross-entropy of each person's action, read off the merged token that holds the middle of its hips."""
    middle = batch.joints.nanmean(3)
    cell, inside = _cells(middle, grid)
    slot, frame, person = (inside & (wanted >= 0)).nonzero(as_tuple=True)
    if not len(slot):
        return guess.sum() * 0
    logits = guess.reshape(*middle.shape[:2], grid[0] * grid[1], -1)[slot, frame, cell[slot, frame, person]]
    return functional.cross_entropy(logits.float(), wanted[slot, frame, person])
