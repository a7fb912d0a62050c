"""Attention over a pack: the prefix to itself, and each branch to the prefix and to itself.

A mask over all tokens of a pack computes the scores between branches and throws them away: for eight branches, three
quarters of all scores. Products and softmax are written out, because torch's fused attention took a third of a
pack's time on a CPU (docs/log.md). transformers finds the function by its name:

    layout = PackLayout.of(pack.branches)
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation=PACK_ATTENTION)
    model(input_ids, position_ids=positions, pack_layout=layout)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

PACK_ATTENTION = "pack"


@dataclass(frozen=True, slots=True)
class PackLayout:
    """Where the branches of a pack are; B branches of at most L tokens.

    Args:
        prefix: number of tokens of the prefix, P.
        tokens: [B, L] indices of the tokens of each branch; shorter branches repeat their last one.
        own: [B * L] of `tokens`, those that are not repeated.
    """

    prefix: int
    tokens: Tensor
    own: Tensor

    @classmethod
    def of(cls, branches: Tensor) -> PackLayout:
        """The layout of a pack by its `branches`: [T] -1 for the prefix, else the number of the branch."""
        prefix = int((branches == -1).sum())
        lengths = torch.bincount(branches[prefix:])
        steps = torch.arange(int(lengths.max()), device=branches.device)
        starts = prefix + lengths.cumsum(0) - lengths
        tokens = starts[:, None] + torch.minimum(steps, lengths[:, None] - 1)
        return cls(prefix, tokens, (steps < lengths[:, None]).flatten())


def pack_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    pack_layout: PackLayout,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention with the signature that transformers calls.

    Args:
        module: the attention layer; not read.
        query: [1, heads, T, D] after position embedding.
        key, value: [1, KV heads, T, D]; the number of heads is a multiple of that of KV heads.
        attention_mask: not read; the layout says what a token sees.
        scaling: of the scores.
        pack_layout: of the T tokens.

    Returns:
        [1, T, heads, D], and None in place of attention weights.
    """
    at, tokens = pack_layout.prefix, pack_layout.tokens
    queries = (query[0] * scaling).reshape(key.shape[1], -1, *query.shape[2:])  # [K, R, T, D]: R heads share a KV head
    first, key_prefix, value_prefix = queries[:, :, :at], key[0, :, :at], value[0, :, :at]
    scores = _product(first, key_prefix.transpose(1, 2)).masked_fill(_later(at, tokens), -math.inf)
    prefix = _product(scores.softmax(dim=-1), value_prefix)  # [K, R, P, D]

    by_branch = queries[:, :, tokens].transpose(1, 2)  # [K, B, R, L, D]
    keys, values = key[0][:, tokens], value[0][:, tokens]  # [K, B, L, D]
    to_prefix = _product(by_branch, key_prefix.transpose(1, 2))
    to_own = _product(by_branch, keys.transpose(2, 3)).masked_fill(_later(tokens.shape[1], tokens), -math.inf)
    weights = torch.cat([to_prefix, to_own], dim=-1).softmax(dim=-1)  # [K, B, R, L, P + L]
    branches = _product(weights[..., :at], value_prefix) + _product(weights[..., at:], values)

    rows = branches.permute(1, 3, 0, 2, 4).flatten(2, 3).flatten(0, 1)[pack_layout.own]
    return torch.cat([prefix.permute(2, 0, 1, 3).flatten(1, 2), rows])[None], None


def _later(size: int, like: Tensor) -> Tensor:
    """[size, size] bool on the device of `like`: whether a column is after its row."""
    return torch.ones(size, size, dtype=torch.bool, device=like.device).triu(1)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x: [*S, ..., M, N] and y: [*S, N, O] → [*S, ..., M, O], with one matrix product for each of S."""
    shared = y.dim() - 2
    return (x.flatten(shared, -2) @ y).reshape(*x.shape[:-1], y.shape[-1])


AttentionInterface.register(PACK_ATTENTION, pack_attention)
