"""Load the drafter of a checkpoint, with the n-gram table and the draft model that came with it, if any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from serving.drafting.draft_model import DraftModel, WordTokenizer
from serving.drafting.ngrams import DRAFT_TABLE, NgramTable
from serving.drafting.speculative import SpeculativeDrafter, StepCost
from serving.text import Tokenizer
from serving.weights.draft_weights import DRAFT_MODEL, Array


def load_drafter(
    folder: Path,
    tokenizer: Tokenizer,
    embedding: Callable[[], Tensor],
    cost: StepCost,
    *,
    adapter_models: Mapping[str, Path] = MappingProxyType({}),
) -> SpeculativeDrafter:
    """The drafter of the checkpoint in `folder`.

    Args:
        folder: the folder of the checkpoint; one that does not exist has neither table nor draft model.
        tokenizer: the tokenizer of the checkpoint.
        embedding: gives the checkpoint's embedding, [V, H], which a draft model shares; called if there is one.
        cost: the cost of the rows of a step, on the engine that verifies the drafts.
        adapter_models: files of draft models that were trained for adapters, by the adapters' names.

    Raises:
        WeightsError: a file of the drafter is invalid, or was made for another checkpoint.
    """
    table, model = folder / DRAFT_TABLE, folder / DRAFT_MODEL

    def load(path: Path) -> DraftModel:
        return DraftModel.load(path, as_numpy(embedding()), WordTokenizer(tokenizer))

    return SpeculativeDrafter(
        NgramTable.load(table) if table.is_file() else None,
        load(model) if model.is_file() else None,
        adapter_models={name: load(path) for name, path in adapter_models.items()},
        cost=cost,
        without_space=tokenizer.without_space,
    )


def as_numpy(tensor: Tensor) -> Array:
    """A tensor as a numpy array, which shares its memory if it is on the CPU; bfloat16 becomes its bits in uint16."""
    tensor = tensor.detach().cpu()
    array: Array = (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array
