"""Look up the tensors of a checkpoint folder: one safetensors file, or shards with an index."""

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


class TensorFiles:
    """The tensors of a folder by name.

    Raises:
        WeightsError: the folder has no readable safetensors files, or two of them have the same tensor.
    """

    def __init__(self, weights_dir: Path) -> None:
        self._dir = weights_dir
        self._files: dict[str, Any] = {}
        for path in _shards(weights_dir):
            opened = _open(path)
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                if name in self._files:
                    raise WeightsError(f"{weights_dir} has the tensor {name} twice; rebuild the weights")
                self._files[name] = opened
        self._unused = set(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: torch.dtype | tuple[torch.dtype, ...]) -> Tensor:
        """A copy of the tensor of that name.

        A view of the mapped file would change with it when somebody overwrites it in place, and reading it would end
        the process (SIGBUS) after somebody cut it.

        Raises:
            WeightsError: it is missing, or has another shape or dtype.
        """
        if name not in self._files:
            raise WeightsError(f"{self._dir} lacks the tensor {name}; rebuild the weights")
        tensor: Tensor = self._files[name].get_tensor(name).clone()
        allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
        if tuple(tensor.shape) != shape or tensor.dtype not in allowed:
            raise WeightsError(
                f"{self._dir} has {name} as {tensor.dtype} {list(tensor.shape)}, expected "
                f"{' or '.join(map(str, allowed))} {list(shape)} by config.json: check that they are of the same model"
            )
        self._unused.discard(name)
        return tensor

    def refuse_unused(self, ignored: tuple[str, ...]) -> None:
        """Refuse a checkpoint with tensors that were not looked up: the model would be computed without them.

        Raises:
            WeightsError: there is such a tensor, and its name does not end with one of `ignored`.
        """
        unused = sorted(name for name in self._unused if not name.endswith(ignored))
        if unused:
            raise WeightsError(
                f"{self._dir} has {len(unused)} tensors that config.json's architecture does not use, for example "
                f"{unused[0]}: use ENGINE=vllm or rebuild the weights"
            )


def _shards(weights_dir: Path) -> list[Path]:
    """The files to open, in a fixed order."""
    single, index = weights_dir / "model.safetensors", weights_dir / _INDEX
    if single.is_file():
        return [single]
    if not index.is_file():
        raise WeightsError(f"{weights_dir} has neither model.safetensors nor {_INDEX}: build the weights first")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        outside = [name for name in names if Path(name).name != name]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index} cannot be read: {error!r}; fetch the weights again") from error
    if outside:
        raise WeightsError(f"{index} names the file {outside[0]!r} outside its folder")
    return [weights_dir / name for name in names]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file: {error}; rebuild the weights") from error
