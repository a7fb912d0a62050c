"""How far the next-token distributions of two checkpoints are apart, in fp32, with one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from pipeline.weights.errors import CheckpointError
from pipeline.weights.layer_loading import ModelTensors, UsedEmbeddings, empty_model, loaded_layer

_ROWS: Final = 128  # positions whose logits are in memory at once


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far two checkpoints are apart over some positions of texts.

    Args:
        kl: the mean Kullback-Leibler divergence of the second checkpoint's distribution from the first's, in nats.
        largest_kl: the largest of them.
        top1: the share of positions where both find the same token likeliest.
    """

    positions: int
    kl: float
    largest_kl: float
    top1: float


def divergences(
    before: ModelTensors, others: Sequence[ModelTensors], texts: Sequence[tuple[list[int], int]]
) -> list[Divergence]:
    """Compare a checkpoint with each of some others on texts.

    Args:
        others: checkpoints with the same vocabulary.
        texts: token ids, and the first token of each that counts; the tokens before it are only read.

    Raises:
        CheckpointError: a checkpoint cannot be computed, or no token counts.
    """
    chosen = [(row, at) for row, (ids, start) in enumerate(texts) for at in range(max(start, 1) - 1, len(ids) - 1)]
    if not chosen:
        raise CheckpointError("the texts have no token to predict; give texts of two tokens or more")
    rows, positions = torch.tensor(chosen).T
    states, head = _final_states(before, [ids for ids, _ in texts])[rows, positions], _head(before)
    found = []
    for weights in others:
        other = _final_states(weights, [ids for ids, _ in texts])[rows, positions]
        found.append(_compare(states, head, other, _head(weights)))
    return found


def _compare(states: Tensor, head: Tensor, other: Tensor, other_head: Tensor) -> Divergence:
    """The divergence, computed from the states that the heads read, [positions, hidden size]."""
    divergence, same = [], 0
    for rows, other_rows in zip(torch.split(states, _ROWS), torch.split(other, _ROWS), strict=True):
        first, second = torch.log_softmax(rows @ head.T, dim=1), torch.log_softmax(other_rows @ other_head.T, dim=1)
        divergence.append((first.exp() * (first - second)).sum(dim=1))
        same += int((first.argmax(dim=1) == second.argmax(dim=1)).sum())
    kl = torch.cat(divergence)
    return Divergence(len(kl), float(kl.double().mean()), float(kl.max()), same / len(kl))


@torch.no_grad()
def _final_states(weights: ModelTensors, texts: Sequence[Sequence[int]]) -> Tensor:
    """The states that the head reads. → [texts, longest, hidden size]; those behind a text's end mean nothing."""
    if not {"model.embed_tokens.weight", "model.norm.weight"} <= weights.specs().keys():
        name = weights.config.get("model_type")
        raise CheckpointError(f"logits of {name} cannot be computed here; those of models built like Llama can")
    model = empty_model(weights.config)
    model.model.embed_tokens = UsedEmbeddings(weights, [token for ids in texts for token in ids], torch.float32)
    model.model.norm.load_state_dict({"weight": torch.tensor(weights.load("model.norm.weight"))}, assign=True)
    for index, layer in enumerate(model.model.layers):
        _load_when_called(layer, index, weights)
    longest = max(map(len, texts))
    # Padding stands behind each text, where causal attention cannot see it.
    ids = torch.tensor([[*text, *[text[0]] * (longest - len(text))] for text in texts])
    states: Tensor = model.model(ids).last_hidden_state
    return states


def _load_when_called(layer: Any, index: int, weights: ModelTensors) -> None:
    held: list[Any] = []

    def load(*_: Any) -> None:
        held.append(loaded_layer(layer, index, weights, torch.float32))
        held[0].__enter__()

    def unload(*_: Any) -> None:
        held.pop().__exit__(None, None, None)

    layer.register_forward_pre_hook(load)
    layer.register_forward_hook(unload)


def _head(weights: ModelTensors) -> Tensor:
    tied = weights.config.get("tie_word_embeddings", False) or "lm_head.weight" not in weights.specs()
    return torch.tensor(weights.load("model.embed_tokens.weight" if tied else "lm_head.weight"))
