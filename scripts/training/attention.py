"""Attention over a pack: a causal prefix, and branches that see the prefix and themselves.

Owns: rotary positions and the two attention calls of a pack. Knows nothing of weights.

    attended = pack_attention(q, k, v, pack)   # [T, heads * head_dim]
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

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
    """q: [T, heads, d]; k, v: [T, kv_heads, d] → [T, heads * d]."""
    prefix = pack.prefix_length
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    outputs = []
    if prefix:
        qp, kp, vp = (x[:prefix].transpose(0, 1)[None] for x in (q, k, v))
        attended = functional.scaled_dot_product_attention(qp, kp, vp, is_causal=True)
        outputs.append(attended[0].transpose(0, 1).flatten(1))
    # [k, L, heads, d]
    qb, kb, vb = (x[pack.branch_index] for x in (q, k, v))
    kb, vb = (torch.cat((x[:prefix].expand(len(b), -1, -1, -1), b), dim=1) for x, b in ((k, kb), (v, vb)))
    attended = functional.scaled_dot_product_attention(
        qb.transpose(1, 2), kb.transpose(1, 2), vb.transpose(1, 2), attn_mask=pack.branch_mask
    )
    outputs.append(attended.transpose(1, 2).flatten(0, 1).flatten(1)[pack.unpad_index])
    return torch.cat(outputs)
