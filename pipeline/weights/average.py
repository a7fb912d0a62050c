"""Average LoRA adapters from several checkpoints of one training run.

Late checkpoints of a run lie around a point that is better than each of them (Izmailov et al. 2018, "Averaging Weights
Leads to Wider Optima and Better Generalization"). The mean of the factors A and B is not the mean of their products, so
the adapters must be similar, that is, of one run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_Tensors = dict[str, NDArray[Any]]


def average_adapters(folders: Sequence[Path], output: Path) -> None:
    """Write the mean of the adapters in `folders` to `output`; sums are float32, the dtype is the first one's.

    Raises:
        CheckpointError: a file is missing, or the adapters differ in shape or configuration.
    """
    (first, config), *others = [_read(folder) for folder in folders]
    for folder, (tensors, its_config) in zip(folders[1:], others, strict=True):
        if its_config != config or _shapes(tensors) != _shapes(first):
            raise CheckpointError(
                f"{folder} and {folders[0]} differ in shape or configuration; give checkpoints of one training run"
            )
    adapters = [first, *(tensors for tensors, _ in others)]
    mean = {
        name: np.mean([tensors[name] for tensors in adapters], axis=0, dtype=np.float32).astype(tensor.dtype)
        for name, tensor in first.items()
    }
    output.mkdir(parents=True, exist_ok=True)
    partial = output / (_WEIGHTS + ".partial")
    save_file(mean, partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # safetensors makes it readable by its owner only
    partial.replace(output / _WEIGHTS)
    (output / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    say(f"Averaged {len(mean)} tensors of {len(folders)} adapters into {output}")


def _read(folder: Path) -> tuple[_Tensors, dict[str, Any]]:
    try:
        return load_file(folder / _WEIGHTS), json.loads((folder / _CONFIG).read_text())
    except (OSError, ValueError, TypeError, SafetensorError) as error:  # numpy has no bfloat16: TypeError
        raise CheckpointError(
            f"{folder} is not an adapter that can be averaged ({error}); give folders that scripts/train_adapter wrote"
        ) from error


def _shapes(tensors: _Tensors) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tensor.shape, str(tensor.dtype)) for name, tensor in tensors.items()}
