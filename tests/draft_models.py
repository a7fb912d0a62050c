"""Draft models for tests: small, untrained, for an embedding of noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pipeline.train.draft_network import DraftModel
from serving.drafting.load_drafter import as_numpy
from serving.weights.draft_weights import DRAFT_MODEL, DraftWeights

VOCAB, WIDTH, SIZE = 300, 45, 96


def write_draft_model(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float16,
    markers: Sequence[Sequence[int]] = ((7, 8),),
    answer_tokens: Sequence[int] = tuple(range(20, 60)),
    trigrams: Sequence[tuple[int, int, int]] = (),
) -> tuple[DraftModel, Tensor]:
    """Write a draft model with random weights to the folder; return it and its embedding [VOCAB, WIDTH]."""
    torch.manual_seed(0)
    embedding = (torch.randn(VOCAB, WIDTH) * 0.1).to(dtype)
    model = DraftModel(embedding, size=SIZE, num_layers=2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter) * (0.12 if parameter.dim() > 1 else 0.1)
            parameter.copy_((noise + (0.0 if parameter.dim() > 1 else 1.0)).half())
        model.head.weight.mul_(0.125)  # so that no token is confident
    model.save(folder / DRAFT_MODEL, markers=markers, answer_tokens=answer_tokens, trigrams=trigrams)
    model.restore(folder / DRAFT_MODEL)  # the file has half precision
    return model, embedding


def load_weights(folder: Path, embedding: Tensor) -> DraftWeights:
    """Load the draft model as the engine does."""
    return DraftWeights.load(folder / DRAFT_MODEL, as_numpy(embedding))
