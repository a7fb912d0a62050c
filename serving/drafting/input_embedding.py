"""Reads the input embedding of a checkpoint from its files; an engine may have converted, padded or divided it."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from serving.errors import WeightsError

_NAMES = ("model.embed_tokens.weight", "embed_tokens.weight", "model.language_model.embed_tokens.weight")


def read_input_embedding(folder: Path) -> Tensor:
    """The embedding, [V, H], of the checkpoint in `folder`, in its own type.

    Raises:
        WeightsError: no file of the folder has one.
    """
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if names := set(_NAMES).intersection(file.keys()):
                tensor: Tensor = file.get_tensor(names.pop()).clone()  # not a view of the file
                return tensor
    raise WeightsError(f"no safetensors file in {folder} has an input embedding; its draft model needs one")
