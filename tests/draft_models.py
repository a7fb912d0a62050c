"""Draft models for tests: small, untrained or fitted to a few answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pipeline.train.draft_examples import make_pairs
from pipeline.train.draft_fit import train
from pipeline.train.draft_network import DraftNetwork
from serving.drafting.draft_model import WordTokenizer
from serving.drafting.load_drafter import as_numpy
from serving.text import Tokenizer
from serving.weights.draft_weights import DRAFT_MODEL, DraftWeights

VOCAB, WIDTH, SIZE = 300, 45, 96


def write_draft_model(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float16,
    markers: Sequence[Sequence[int]] = ((7, 8),),
    answer_tokens: Sequence[int] = tuple(range(20, 60)),
    trigrams: Sequence[tuple[int, int, int]] = (),
) -> tuple[DraftNetwork, Tensor]:
    """Write a draft model with random weights to the folder; return it and its embedding [VOCAB, WIDTH]."""
    torch.manual_seed(0)
    embedding = (torch.randn(VOCAB, WIDTH) * 0.1).to(dtype)
    model = DraftNetwork(embedding, size=SIZE, num_layers=2)
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


def fit_draft_model(
    path: Path, embedding: Tensor, tokenizer: Tokenizer, answers: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Path:
    """Write a draft model that knows some answers by heart.

    Args:
        path: of its file.
        embedding: [vocab, hidden] of the checkpoint.
        tokenizer: of the checkpoint.
        answers: token ids of prompts, which all begin with the same token, and of their answers.
    """
    torch.manual_seed(0)
    marker = [answers[0][0][0]]
    pairs = make_pairs(answers, [marker], WordTokenizer(tokenizer), cut_answers=False)
    model = DraftNetwork(embedding, size=32, num_layers=1)
    limits = {"minutes": 60.0, "max_steps": 150, "rate": 2e-2, "batch": len(pairs)}
    train(model, pairs, order=random.Random(0), change=lambda pair: pair, report=lambda *_: None, **limits)
    tokens = {token for _, answer in pairs for token in answer}
    model.save(path, markers=[marker], answer_tokens=sorted(tokens), trigrams=[])
    return path
