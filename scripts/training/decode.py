"""Greedy answers of a model in training, many at once.

Owns: a padded KV cache and the decoding loop, in fp32 and without a grammar, so that a checkpoint
can be judged before it is merged and quantized. Questions to the same columns share their prefill.

    answers = greedy(model, prompts, end_token_id=2, max_new_tokens=200)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from scripts.training.attention import Rotary, pack_attention
from scripts.training.model import LoraLlama
from scripts.training.packing import Pack, TokenizedExample, make_pack


@torch.no_grad()
def greedy(
    model: LoraLlama, prompts: Sequence[Sequence[int]], end_token_id: int, max_new_tokens: int
) -> list[list[int]]:
    """The tokens of each answer, without the end token."""
    cache = KvCache(model, [len(p) for p in prompts], max_new_tokens)
    tokens = torch.empty(len(prompts), dtype=torch.long)
    for members in _by_first_tokens(prompts):
        # the answer of one token stands where the first new token will; its KV is never read
        pack = make_pack([TokenizedExample(tuple(prompts[i]), (0,)) for i in members])
        tokens[members] = _prefill(model, pack, cache, members)
    answers: list[list[int]] = [[] for _ in prompts]
    open_rows = torch.ones(len(prompts), dtype=torch.bool)
    for _ in range(max_new_tokens):
        open_rows &= tokens != end_token_id
        if not open_rows.any():
            break
        for row in open_rows.nonzero().flatten().tolist():
            answers[row].append(int(tokens[row]))
        tokens = _decode(model, tokens, cache)
    return answers


class KvCache:
    """Keys and values of all layers, one padded row a sequence."""

    def __init__(self, model: LoraLlama, lengths: Sequence[int], max_new_tokens: int) -> None:
        s = model.shape
        size = (s.layers, len(lengths), s.kv_heads, max(lengths) + max_new_tokens, s.head_dim)
        self.keys = torch.zeros(size, dtype=model.embedding.dtype)
        self.values = torch.zeros(size, dtype=model.embedding.dtype)
        self.lengths = torch.tensor(lengths)

    def write_prompt(self, layer: int, row: int, keys: Tensor, values: Tensor) -> None:
        """keys, values: [tokens, kv_heads, d]."""
        self.keys[layer, row, :, : len(keys)] = keys.transpose(0, 1)
        self.values[layer, row, :, : len(values)] = values.transpose(0, 1)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store one token a row and look at all so far. q: [B, heads, d] → [B, heads * d]."""
        rows = torch.arange(len(q))
        self.keys[layer, rows, :, self.lengths] = k
        self.values[layer, rows, :, self.lengths] = v
        longest = int(self.lengths.max()) + 1
        mask = torch.arange(longest)[None] <= self.lengths[:, None]
        attended = functional.scaled_dot_product_attention(
            q[:, :, None],
            self.keys[layer, :, :, :longest],
            self.values[layer, :, :, :longest],
            attn_mask=mask[:, None, None],
            enable_gqa=True,
        )
        return attended.flatten(1)


def _prefill(model: LoraLlama, pack: Pack, cache: KvCache, members: list[int]) -> Tensor:
    rotary = _rotary(model, pack.positions)
    hidden = functional.embedding(pack.input_ids, model.embedding)
    prefix = pack.prefix_length
    for index, layer in enumerate(model.layers):
        q, k, v = layer.qkv(hidden, rotary, model.anchor)
        for row, places in zip(members, pack.branch_index, strict=True):
            own = places[: int(cache.lengths[row]) - prefix]
            cache.write_prompt(index, row, torch.cat((k[:prefix], k[own])), torch.cat((v[:prefix], v[own])))
        hidden = layer.finish(hidden, pack_attention(q, k, v, pack), model.anchor)
    return model.logits(hidden[pack.predict_index]).argmax(dim=-1)


def _decode(model: LoraLlama, tokens: Tensor, cache: KvCache) -> Tensor:
    rotary = _rotary(model, cache.lengths)
    hidden = functional.embedding(tokens, model.embedding)
    for index, layer in enumerate(model.layers):
        attended = cache.attend(index, *layer.qkv(hidden, rotary, model.anchor))
        hidden = layer.finish(hidden, attended, model.anchor)
    cache.lengths += 1
    return model.logits(hidden).argmax(dim=-1)


def _rotary(model: LoraLlama, positions: Tensor) -> Rotary:
    return Rotary(positions, model.shape.head_dim, model.shape.rope_theta, model.embedding.dtype)


def _by_first_tokens(prompts: Sequence[Sequence[int]], most: int = 16) -> list[list[int]]:
    """Neighbours that share most of their tokens: those are prefilled together."""
    groups: list[list[int]] = []
    for i, prompt in enumerate(prompts):
        if groups and len(groups[-1]) < most:
            first = prompts[groups[-1][0]]
            shared = next(
                (n for n, (a, b) in enumerate(zip(first, prompt, strict=False)) if a != b), len(first)
            )
            if shared * 2 > len(prompt):
                groups[-1].append(i)
                continue
        groups.append([i])
    return groups
