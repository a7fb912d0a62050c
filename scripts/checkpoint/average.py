"""One LoRA adapter out of several moments of one training run.

Owns: the mean of their factors. Knows nothing of models. A run's late checkpoints lie around a better point
than each of them ("Averaging Weights Leads to Wider Optima and Better Generalization", Izmailov et al. 2018).
The mean of factors is not the mean of their products, so they must be near each other: of one run.

    average_adapters([Path("build/adapter-50k"), Path("build/adapter-60k")], Path("adapters/mine"))
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

from scripts.checkpoint.errors import CheckpointError

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_Tensors = dict[str, NDArray[Any]]


def average_adapters(folders: Sequence[Path], output: Path) -> int:
    """Write the mean, summed up in float32, in the type of the first; the number of tensors.

    Raises:
        CheckpointError: a file is missing, or the adapters are not of one shape and configuration.
    """
    (first, config), *others = [_read(folder) for folder in folders]
    for folder, (tensors, its_config) in zip(folders[1:], others, strict=True):
        if its_config != config or _shapes(tensors) != _shapes(first):
            raise CheckpointError(f"{folder} and {folders[0]} are not moments of one run; average only such")
    moments = [first, *(tensors for tensors, _ in others)]
    mean = {
        name: np.mean([tensors[name] for tensors in moments], axis=0, dtype=np.float32).astype(tensor.dtype)
        for name, tensor in first.items()
    }
    output.mkdir(parents=True, exist_ok=True)
    partial = output / (_WEIGHTS + ".partial")
    save_file(mean, partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # safetensors leaves it to its owner alone
    partial.replace(output / _WEIGHTS)
    (output / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    return len(mean)


def _read(folder: Path) -> tuple[_Tensors, dict[str, Any]]:
    try:
        return load_file(folder / _WEIGHTS), json.loads((folder / _CONFIG).read_text())
    except (OSError, ValueError, TypeError, SafetensorError) as error:  # numpy has no bfloat16: TypeError
        raise CheckpointError(
            f"{folder} is not an adapter that can be averaged ({error}); give folders that "
            "scripts/train_adapter wrote"
        ) from error


def _shapes(tensors: _Tensors) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tensor.shape, str(tensor.dtype)) for name, tensor in tensors.items()}
