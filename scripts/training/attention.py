"""Attention over a pack: a causal prefix, and branches that see the prefix and themselves.

Owns: rotary positions and the two attention calls of a pack. Knows nothing of weights.

    attended = pack_attention(q, k, v, pack)   # [T, heads * head_dim]
"""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.training.packing import Pack


class Rotary:
    """Rotates q and k by their positions (the half-split form of Hugging Face checkpoints)."""

    def __init__(self, positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> None:
        exponents = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
        angles = positions.float()[:, None] * (theta**-exponents)[None, :]
        # [T, 1, head_dim / 2]
        self.cos = angles.cos().to(dtype)[:, None]
        self.sin = angles.sin().to(dtype)[:, None]

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, heads, head_dim]."""
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * self.cos - second * self.sin, second * self.cos + first * self.sin), dim=-1)


def pack_attention(q: Tensor, k: Tensor, v: Tensor, pack: Pack) -> Tensor:
    """q: [T, heads, d]; k, v: [T, kv_heads, d] → [T, heads * d].

    Scores are written out: torch's fused kernels for CPUs take four times as long backwards.
    """
    prefix = pack.prefix_length
    outputs = []
    if prefix:
        causal = torch.ones(prefix, prefix, dtype=torch.bool, device=q.device).tril()
        outputs.append(_attend(*(x[:prefix][None] for x in (q, k, v)), causal)[0])
    # [branches, L, heads, d]
    qb, kb, vb = (x[pack.branch_index] for x in (q, k, v))
    kb, vb = (torch.cat((x[:prefix].expand(len(b), -1, -1, -1), b), dim=1) for x, b in ((k, kb), (v, vb)))
    outputs.append(_attend(qb, kb, vb, pack.branch_mask).flatten(0, 1)[pack.unpad_index])
    return torch.cat(outputs)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q: [B, L, heads, d]; k, v: [B, S, kv_heads, d]; mask: [L, S] → [B, L, heads * d].

    The query heads that share a KV head are rows of one matmul.
    """
    batch, length, heads, dim = q.shape
    kv_heads = k.shape[2]
    bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -torch.inf)
    bias = bias.expand(heads // kv_heads, -1, -1).flatten(0, 1)  # [groups * L, S]
    # [B * kv_heads, groups * L, d] and [B * kv_heads, S, d]
    rows = (q * dim**-0.5).unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)
    keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (k, v))
    scores = torch.baddbmm(bias, rows, keys.transpose(1, 2))
    out = torch.bmm(torch.softmax(scores, dim=-1), values).view(batch, kv_heads, -1, length, dim)
    return out.permute(0, 3, 1, 2, 4).flatten(2)
