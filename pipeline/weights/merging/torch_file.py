"""Read a .bin file of torch, only through its weights-only loader, which cannot run code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import Array, TensorSpec

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "uint8": "U8"}


class TorchFile:
    """The tensors of one .bin file, which stay on disk until they are read.

    Raises:
        CheckpointError: the file is damaged, or has anything but tensors that a checkpoint can have.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = _load(path)
        self._specs: dict[str, TensorSpec] = {}
        for name, tensor in self._tensors.items():
            dtype = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
            if dtype not in _DTYPES or tensor.is_sparse or tensor.is_quantized:
                known = ", ".join(_DTYPES)
                raise CheckpointError(f"{path}: {name} is {dtype}; only dense tensors of {known} can be read")
            self._specs[name] = TensorSpec(_DTYPES[dtype], tuple(tensor.shape))

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by name."""
        return self._specs

    def load(self, name: str) -> Array:
        """Read one tensor."""
        spec = self._specs[name]
        return spec.decode(self.read(name, 0, spec.nbytes))

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Bytes `begin` to `end` of a tensor's data, as safetensors lays it out."""
        import torch  # takes seconds, and only .bin files need it

        item = self._specs[name].itemsize
        flat = self._tensors[name].reshape(-1)[begin // item : -(-end // item)].contiguous()
        data: bytes = flat.view(torch.uint8).numpy().tobytes()
        return data[begin % item : begin % item + end - begin]


def _load(path: Path) -> dict[str, Any]:
    import torch

    remedy = "load it where it comes from, and save it as safetensors"
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # of many types, by what is wrong with the file
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{path} cannot be read safely ({why[0]}); {remedy}") from error
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise CheckpointError(f"{path} is not a dictionary of tensors; {remedy}")
    return tensors
