"""The embedding that a draft model shares with its checkpoint, and committed draft models for the same embedding."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from pipeline.paths import CODE, ROOT
from pipeline.prepare.record import DRAFT_RUN, draft_record_path
from pipeline.weights.recipes import recipes
from serving.weights.adapter_files import CONFIG as ADAPTER_CONFIG
from serving.weights.draft_weights import DRAFT_MODEL

_PRETRAINED: Final = CODE / "examples" / "drafts"  # of scripts/dev/pretrain_drafter, a folder for each embedding
_SIGNS: Final = 4096  # of values that are compared
_SAME: Final = 0.9  # fraction of the same signs; half of them are the same in embeddings of different models


def run_record(folder: Path) -> Path:
    """Where the record of the draft model in a folder is written.

    It is in the folder. But a checkpoint's files are locked, and an adapter's have a digest: there it is beside it.
    """
    if any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
        return draft_record_path(folder.resolve())
    return folder / DRAFT_RUN


def draft_shape(path: Path) -> tuple[int, int]:
    """The width and the number of layers of a draft model.

    Raises:
        SafetensorError, OSError: the file is none.
    """
    with safe_open(path, "np") as file:
        names = list(file.keys())
        size = file.get_slice("final_norm").get_shape()[0]
        return size, sum(name.endswith(".qkv") for name in names)


def embedding_signs(embedding: Tensor) -> dict[str, object]:
    """What tells an embedding [V, H] from others: its shape, and the signs of some values, which rounding keeps."""
    bits = np.packbits(torch.signbit(_some_values(embedding)).numpy())
    return {"shape": list(embedding.shape), "signs": base64.b64encode(bits.tobytes()).decode()}


def committed_start(weights: Path, embedding: Tensor, *, size: int, layers: int) -> Path | None:
    """A committed draft model for this embedding, to start from; None for a recipe's own weights, or if none fits.

    Those that were pretrained for any task come before those of recipes, which know one task.

    Raises:
        CheckpointError: a recipe cannot be read.
    """
    known = recipes(ROOT).values()
    if any(recipe.weights(ROOT).resolve() == weights.resolve() for recipe in known):
        return None
    for folder in (*sorted(_PRETRAINED.glob("*")), *(recipe.folder for recipe in known)):
        model, run = folder / DRAFT_MODEL, folder / DRAFT_RUN
        if model.is_file() and run.is_file() and _fits(json.loads(run.read_text()), embedding, size, layers):
            return model
    return None


def _fits(run: dict[str, dict[str, object]], embedding: Tensor, size: int, layers: int) -> bool:
    made, known = run["settings"], run.get("embedding")
    if made["size"] != size or int(str(made["layers"])) > layers:
        return False
    if known is None or known["shape"] != list(embedding.shape):
        return False
    bits = np.unpackbits(np.frombuffer(base64.b64decode(str(known["signs"])), np.uint8))
    signs = torch.signbit(_some_values(embedding)).numpy()
    return bool((bits[: len(signs)] == signs).mean() >= _SAME)


def _some_values(embedding: Tensor) -> Tensor:
    values = embedding.flatten()
    return values[:: max(1, len(values) // _SIGNS)][:_SIGNS]
