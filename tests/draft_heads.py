"""Trained heads for tests: random ones, and such as were fitted to a few hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional


def write_heads(path: Path, weight: Tensor, bias: Tensor, answer_tokens: Sequence[int]) -> Path:
    """weight: [heads, hidden, hidden]; bias: [heads, hidden]."""
    tokens = torch.tensor(list(answer_tokens), dtype=torch.int32)
    save_file({"weight": weight.half(), "bias": bias.half(), "answer_tokens": tokens}, path)
    return path


def random_heads(path: Path, hidden: int, answer_tokens: Sequence[int], *, heads: int = 3) -> Path:
    """Heads that guess anything."""
    torch.manual_seed(0)
    return write_heads(path, torch.randn(heads, hidden, hidden), torch.randn(heads, hidden), answer_tokens)


def fitted_heads(
    path: Path, model_head: Tensor, answers: Sequence[tuple[Tensor, Sequence[int]]], *, heads: int = 3, shift: int = 0
) -> Path:
    """Heads that know some answers by heart.

    Args:
        path: of their file.
        model_head: [vocab, hidden].
        answers: hidden states [n, hidden], each of which has chosen one of n tokens, and these tokens.
        heads: their number.
        shift: is added to each token that they learn, so that they are wrong.
    """
    vocab, hidden = model_head.shape
    weight, bias = torch.zeros(heads, hidden, hidden), torch.zeros(heads, hidden)
    for number in range(heads):
        x = torch.cat([states[: len(tokens) - 1 - number] for states, tokens in answers])
        y = torch.tensor([(token + shift) % vocab for _, tokens in answers for token in tokens[1 + number :]])
        w, b = torch.zeros(hidden, hidden, requires_grad=True), torch.zeros(hidden, requires_grad=True)
        optimizer = torch.optim.Adam([w, b], 0.02)
        for _ in range(150):
            loss = functional.cross_entropy((x + functional.silu(x @ w.T + b)) @ model_head.T, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        weight[number], bias[number] = w.detach(), b.detach()
    return write_heads(path, weight, bias, range(vocab))
