"""Opens a base or an adapter, in safetensors or in torch's .bin files, so that parts of its tensors can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import SafetensorsFile, shard_paths
from pipeline.weights.tensors import Array, TensorSpec

_BIN, _BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "uint8": "U8"}


class TensorSource(Protocol):
    """Named tensors, of which parts can be read."""

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by name."""
        ...

    def load(self, name: str) -> Array:
        """A whole tensor."""
        ...

    def read(self, name: str, begin: int, end: int) -> bytes:
        """The bytes `begin` to `end` of a tensor's data, as safetensors lays it out."""
        ...


class ShardedSource:
    """The tensors of several files; `shards` has the tensors of each file, named as its safetensors copy would be."""

    def __init__(self, files: dict[str, TensorSource]) -> None:
        self.shards: dict[str, list[str]] = {}
        self._file_of: dict[str, TensorSource] = {}
        for label, file in files.items():
            self.shards[label] = [name for name in file.specs() if name not in self._file_of]
            self._file_of |= dict.fromkeys(self.shards[label], file)

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by name."""
        return {name: file.specs()[name] for name, file in self._file_of.items()}

    def load(self, name: str) -> Array:
        """A whole tensor."""
        return self._file_of[name].load(name)

    def read(self, name: str, begin: int, end: int) -> bytes:
        """The bytes `begin` to `end` of a tensor's data."""
        return self._file_of[name].read(name, begin, end)


def open_base(folder: Path) -> ShardedSource:
    """The tensors of a checkpoint; safetensors are preferred.

    Raises:
        CheckpointError: the folder has no checkpoint, or it is incomplete or damaged.
    """
    if any((folder / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")):
        return _open({path.name: path for path in shard_paths(folder)})
    if (folder / _BIN_INDEX).exists() or (folder / _BIN).exists():
        return _open({_safetensors_name(path): path for path in shard_paths(folder, _BIN, _BIN_INDEX)})
    raise CheckpointError(f"{folder} has neither model.safetensors nor {_BIN}, whole or with an index")


def open_adapter(folder: Path) -> TensorSource:
    """The tensors of an adapter; safetensors are preferred.

    Raises:
        CheckpointError: the folder has none, or they are damaged.
    """
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        if (folder / name).exists():
            return _file(folder / name)
    raise CheckpointError(f"{folder} has neither adapter_model.safetensors nor adapter_model.bin; it is incomplete")


def adapter_files(folder: Path) -> list[Path]:
    """The files that say what a merge with the adapter gives."""
    names = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
    return [folder / name for name in names if (folder / name).exists()]


def _open(paths: dict[str, Path]) -> ShardedSource:
    missing = [path.name for path in paths.values() if not path.exists()]
    if missing:
        raise CheckpointError(f"{next(iter(paths.values())).parent} lacks {missing[0]}, which its index names")
    return ShardedSource({label: _file(path) for label, path in paths.items()})


def _file(path: Path) -> TensorSource:
    return TorchFile(path) if path.suffix == ".bin" else SafetensorsFile(path)


def _safetensors_name(path: Path) -> str:
    return path.with_suffix(".safetensors").name.replace("pytorch_model", "model")


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
        """The bytes `begin` to `end` of a tensor's data, as safetensors lays it out."""
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
