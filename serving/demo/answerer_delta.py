"""The gated delta rule of Qwen3.5's linear attention for one head, in chunks, written so that it can be compiled.

Compiled, the backward pass of Hugging Face's version gives NaN: it takes an exponential of minus infinity.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

CHUNK = 64


def delta_attention(layer: Qwen3_5GatedDeltaNet, hidden: Tensor) -> Tensor:
    """What the layer makes of a sequence from its start.

    Args:
        layer: A layer with one head.
        hidden: `(B, L, width)`; L is padded to a multiple of `CHUNK` at the right.
    """
    length = hidden.shape[1]
    hidden = functional.pad(hidden, (0, 0, 0, -length % CHUNK))
    mixed = functional.silu(_shifted_sum(layer.in_proj_qkv(hidden), layer.conv1d.weight[:, 0]))
    parts: tuple[Tensor, ...] = mixed.split((layer.key_dim, layer.key_dim, layer.value_dim), -1)  # type: ignore[no-untyped-call]
    query, key, value = (part.float() for part in parts)
    decay = -layer.A_log.exp() * functional.softplus(layer.in_proj_a(hidden).float() + layer.dt_bias)
    strength = layer.in_proj_b(hidden).sigmoid().float()
    query, key = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in (query, key))
    mixed = _delta_rule(query * layer.head_k_dim**-0.5, key, value, decay[..., 0], strength)
    gated = layer.norm(mixed.to(hidden.dtype), layer.in_proj_z(hidden))
    out: Tensor = layer.out_proj(gated)[:, :length]
    return out


def _delta_rule(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
    """`(B, L, d)`: reads of a state that forgets by `decay` (a logarithm) and learns key to value by `strength`."""
    batch, length, width = query.shape
    query, key, value, strength = (
        part.reshape(batch, -1, CHUNK, part.shape[-1]) for part in (query, key, value, strength)
    )
    total = decay.reshape(batch, -1, CHUNK).cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK).tril()
    kept = (total.unsqueeze(-1) - total.unsqueeze(-2)).clamp(max=0).exp() * lower
    since, until = total.exp().unsqueeze(-1), (total[..., -1:] - total).exp().unsqueeze(-1)
    learned = key * strength
    system = (learned @ key.transpose(-1, -2)).float() * kept
    sides = torch.cat((value * strength, learned * since), -1)
    news, reads = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True).chunk(2, -1)
    near = (query @ key.transpose(-1, -2)) * kept
    state = torch.zeros(batch, width, width)
    outputs = []
    for chunk in range(length // CHUNK):
        fresh = news[:, chunk] - reads[:, chunk] @ state
        outputs.append((query * since)[:, chunk] @ state + near[:, chunk] @ fresh)
        state = state * since[:, chunk, -1:] + (key * until)[:, chunk].transpose(-1, -2) @ fresh
    return torch.stack(outputs, 1).reshape(batch, length, width).float()


def _shifted_sum(sequence: Tensor, kernel: Tensor) -> Tensor:
    """A causal convolution of each channel of `(B, L, C)` with its row of `(C, K)`."""
    size = kernel.shape[1]
    padded = functional.pad(sequence, (0, 0, size - 1, 0))
    return torch.stack([padded[:, tap : tap + sequence.shape[1]] * kernel[:, tap] for tap in range(size)]).sum(0)
