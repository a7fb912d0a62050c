"""Load the drafter of a checkpoint, with the n-gram table and the draft model that came with it, if any."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from serving.drafting.draft_model import DraftModel, WordTokenizer
from serving.drafting.ngrams import DRAFT_TABLE, NgramTable
from serving.drafting.speculative import SpeculativeDrafter, StepCost
from serving.errors import WeightsError
from serving.text import Tokenizer
from serving.weights.draft_weights import DRAFT_MODEL, Array

_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "model.language_model.embed_tokens.weight")


def read_input_embedding(folder: Path) -> Tensor:
    """The embedding, [V, H], of a checkpoint in its own type; an engine may have converted, padded or divided it.

    Raises:
        WeightsError: no file of the folder has one.
    """
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if names := set(_EMBEDDINGS).intersection(file.keys()):
                tensor: Tensor = file.get_tensor(names.pop()).clone()  # not a view of the file
                return tensor
    raise WeightsError(f"no safetensors file in {folder} has an input embedding; its draft model needs one")


class DraftModelLoader:
    """Loads the draft models of a checkpoint and of its adapters, which all share its embedding.

    Args:
        tokenizer: the tokenizer of the checkpoint.
        embedding: gives the checkpoint's embedding, [V, H]; called when there is the first draft model.
    """

    def __init__(self, tokenizer: Tokenizer, embedding: Callable[[], Tensor]) -> None:
        self.tokenizer = tokenizer
        self._read_embedding = embedding

    def load(self, path: Path, tokenizer: Tokenizer | None = None) -> DraftModel:
        """Load the draft model in a file, for an adapter that adds tokens with its tokenizer.

        Raises:
            WeightsError: the file is no draft model, or was made for another checkpoint.
        """
        return DraftModel.load(path, self._embedding, WordTokenizer(tokenizer or self.tokenizer))

    @cached_property
    def _embedding(self) -> Array:
        return as_numpy(self._read_embedding())


def load_drafter(folder: Path, models: DraftModelLoader, cost: StepCost) -> SpeculativeDrafter:
    """The drafter of the checkpoint in `folder`; one that does not exist has neither table nor draft model.

    `cost` is that of the rows of a step, on the engine that verifies the drafts.

    Raises:
        WeightsError: a file of the drafter is invalid, or was made for another checkpoint.
    """
    table, model = folder / DRAFT_TABLE, folder / DRAFT_MODEL
    return SpeculativeDrafter(
        NgramTable.load(table) if table.is_file() else None,
        models.load(model) if model.is_file() else None,
        cost=cost,
        without_space=models.tokenizer.without_space,
    )


def as_numpy(tensor: Tensor) -> Array:
    """A tensor as a numpy array, which shares its memory if it is on the CPU; bfloat16 becomes its bits in uint16."""
    tensor = tensor.detach().cpu()
    array: Array = (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array
