"""Attention over a pack: the prefix to itself, and each branch to the prefix and to itself.

A mask over all tokens of a pack computes the scores between branches and throws them away: for eight branches, three
quarters of all scores. transformers finds the function by its name:

    layout = PackLayout.of(pack.branches)
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation=PACK_ATTENTION)
    model(input_ids, position_ids=positions, pack_layout=layout)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

PACK_ATTENTION = "pack"


@dataclass(frozen=True, slots=True)
class PackLayout:
    """Where the branches of a pack are; B branches of at most L tokens.

    Args:
        prefix: number of tokens of the prefix, P.
        tokens: [B, L] indices of the tokens of each branch; shorter branches repeat their last one.
        own: [B * L] of `tokens`, those that are not repeated.
        sees: [B, 1, L, P + L] bool: the prefix, and the branch up to the token itself.
    """

    prefix: int
    tokens: Tensor
    own: Tensor
    sees: Tensor

    @classmethod
    def of(cls, branches: Tensor) -> PackLayout:
        """The layout of a pack by its `branches`: [T] -1 for the prefix, else the number of the branch."""
        prefix = int((branches == -1).sum())
        lengths = torch.bincount(branches[prefix:])
        steps = torch.arange(int(lengths.max()), device=branches.device)
        starts = prefix + lengths.cumsum(0) - lengths
        tokens = starts[:, None] + torch.minimum(steps, lengths[:, None] - 1)
        causal = (steps[:, None] >= steps).expand(len(lengths), 1, -1, -1)
        to_prefix = causal.new_ones(len(lengths), 1, len(steps), prefix)
        own = (steps < lengths[:, None]).flatten()
        return cls(prefix, tokens, own, torch.cat([to_prefix, causal], dim=3))


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
    repeat = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(repeat, dim=1) if repeat > 1 else t for t in (key, value))
    prefix = functional.scaled_dot_product_attention(
        query[:, :, :at], key[:, :, :at], value[:, :, :at], is_causal=True, scale=scaling
    )
    keys, values = (_with_prefix(t, at, tokens) for t in (key, value))
    branches = functional.scaled_dot_product_attention(
        _by_branch(query, tokens), keys, values, attn_mask=pack_layout.sees, scale=scaling
    )
    rows = branches.transpose(1, 2).flatten(0, 1)[pack_layout.own]
    return torch.cat([prefix[0].transpose(0, 1), rows])[None], None


def _by_branch(x: Tensor, tokens: Tensor) -> Tensor:
    """[1, heads, T, D] → [B, heads, L, D]."""
    return x[0].transpose(0, 1)[tokens].transpose(1, 2)


def _with_prefix(x: Tensor, prefix: int, tokens: Tensor) -> Tensor:
    """[1, heads, T, D] → [B, heads, P + L, D]: the prefix, which all branches share, before each branch."""
    shared = x[:, :, :prefix].expand(len(tokens), -1, -1, -1)
    return torch.cat([shared, _by_branch(x, tokens)], dim=2)


AttentionInterface.register(PACK_ATTENTION, pack_attention)
