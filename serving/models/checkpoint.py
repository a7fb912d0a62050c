"""The tensors of a checkpoint folder, memory-mapped.

Owns: finding safetensors files (one, or shards with an index), looking tensors up by name, and telling
which ones nobody asked for. Knows nothing of what they mean.

    checkpoint = Checkpoint(Path("weights/honeycomb-nlq"))
    norm = checkpoint.tensor("model.norm.weight", (576,), torch.float16)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from serving.errors import WeightsError

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_INDEX = "model.safetensors.index.json"


class Checkpoint:
    """Names to tensors. Tensors are views of the mapped files; nothing is read before it is used."""

    def __init__(self, weights_dir: Path) -> None:
        self._dir = weights_dir
        self._files: dict[str, Any] = {}
        for path in _shards(weights_dir):
            opened = _open(path)
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                if name in self._files:
                    raise WeightsError(f"{weights_dir} holds the tensor {name} twice; rebuild the weights")
                self._files[name] = opened
        self._unused = set(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(
        self, name: str, shape: tuple[int, ...], dtypes: torch.dtype | tuple[torch.dtype, ...]
    ) -> Tensor:
        """The tensor of that name.

        Raises:
            WeightsError: missing, or of another shape or dtype than the model wants.
        """
        if name not in self._files:
            raise WeightsError(f"{self._dir} lacks the tensor {name}; rebuild the weights")
        tensor: Tensor = self._files[name].get_tensor(name)
        allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
        if tuple(tensor.shape) != shape or tensor.dtype not in allowed:
            raise WeightsError(
                f"{self._dir} has {name} as {tensor.dtype} {list(tensor.shape)}; config.json says "
                f"{list(shape)} and {' or '.join(map(str, allowed))} is wanted: do the two belong together?"
            )
        self._unused.discard(name)
        return tensor

    def refuse_unused(self, ignored: tuple[str, ...]) -> None:
        """A tensor nobody asked for means a model that we would compute wrongly.

        Raises:
            WeightsError: naming one whose name does not end with one of `ignored`.
        """
        left = sorted(name for name in self._unused if not name.endswith(ignored))
        if left:
            raise WeightsError(
                f"{self._dir} has {len(left)} tensors that config.json's architecture does not use, "
                f"{left[0]} for one: use ENGINE=vllm or rebuild the weights"
            )


def _shards(weights_dir: Path) -> list[Path]:
    """The files to open, in a fixed order."""
    single, index = weights_dir / "model.safetensors", weights_dir / _INDEX
    if single.is_file():
        return [single]
    if not index.is_file():
        raise WeightsError(
            f"{weights_dir} has neither model.safetensors nor {_INDEX}: build the weights first"
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        outside = [name for name in names if Path(name).name != name]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index} cannot be read: {error!r}; fetch the weights again") from error
    if outside:
        raise WeightsError(f"{index} names the file {outside[0]!r} outside its folder")
    return [weights_dir / name for name in names]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise WeightsError(
            f"{path} is not a readable safetensors file: {error}; rebuild the weights"
        ) from error
