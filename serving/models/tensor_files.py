"""Look up the tensors of a checkpoint folder: one safetensors file, or shards with an index."""

from __future__ import annotations

import json
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from serving.errors import WeightsError

if TYPE_CHECKING:
    from serving.weights.safetensors_header import SafetensorsHeader, TensorEntry

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_INDEX = "model.safetensors.index.json"
_DTYPES = {
    **{"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64},
    **{"I32": torch.int32, "I64": torch.int64, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
}


class TensorFiles:
    """The tensors of a folder by name. The files are read, not mapped: pages of a mapping stay in the process' memory.

    Raises:
        WeightsError: the folder has no readable safetensors files, or two of them have the same tensor.
    """

    def __init__(self, weights_dir: Path) -> None:
        self._dir = weights_dir
        self._places: dict[str, tuple[Path, int, int, TensorEntry]] = {}  # path, file, its data, tensor
        for path in _shards(weights_dir):
            header, file = _open(path)
            weakref.finalize(self, os.close, file)
            for name, entry in header.tensors.items():
                if name in self._places:
                    raise WeightsError(f"{weights_dir} has the tensor {name} twice; rebuild the weights")
                self._places[name] = path, file, header.data_start, entry
        self._unused = set(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: torch.dtype | tuple[torch.dtype, ...]) -> Tensor:
        """The tensor of that name, read into new memory.

        Raises:
            WeightsError: it is missing, has another shape or dtype, or cannot be read.
        """
        if name not in self._places:
            raise WeightsError(f"{self._dir} lacks the tensor {name}; rebuild the weights")
        path, file, start, entry = self._places[name]
        dtype = _DTYPES.get(entry.dtype)
        allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
        if entry.shape != shape or dtype not in allowed:
            raise WeightsError(
                f"{self._dir} has {name} as {dtype or entry.dtype} {list(entry.shape)}, expected "
                f"{' or '.join(map(str, allowed))} {list(shape)} by config.json: check that they are of the same model"
            )
        self._unused.discard(name)
        tensor = torch.empty(shape, dtype=dtype)
        _read(path, file, start + entry.begin, tensor)
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


def _open(path: Path) -> tuple[SafetensorsHeader, int]:
    """The header, and a descriptor of the same file: another may take its name while tensors are read."""
    # Its package imports pydantic, which the check of a bare machine with a GPU does without.
    from serving.weights.safetensors_header import read_safetensors_header

    header = read_safetensors_header(path)
    try:
        file = os.open(path, os.O_RDONLY)
        is_same = os.path.samestat(os.fstat(file), path.stat())
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}; fetch the weights again") from error
    if not is_same or read_safetensors_header(path) != header:
        os.close(file)
        raise WeightsError(f"{path} was replaced while it was opened; start again")
    return header, file


def _read(path: Path, file: int, offset: int, tensor: Tensor) -> None:
    """Fill a tensor with the bytes at an offset."""
    into = tensor.view(-1).view(torch.uint8).numpy().data
    try:
        while into:
            count = os.preadv(file, [into], offset)
            if not count:
                raise WeightsError(f"{path} ends before its last tensor; fetch the weights again")
            into, offset = into[count:], offset + count
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}; fetch the weights again") from error
