"""A folder of a checkpoint with an adapter folded in, shard for shard.

Owns: which files the merged folder has. Knows nothing of how a tensor is merged.

    merge_folder(Path("base"), Path("adapter"), Path("merged"))
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .console import progress_bar
from .lora import LoraAdapter, MergedCheckpoint
from .quantize import read_config
from .safetensors_io import SafetensorsCheckpoint, write_safetensors
from .tensors import Array, Checkpoint, TensorSpec

_COPIED = {".json", ".jinja", ".model", ".txt"}  # config, tokenizer, index of the shards


class _Part:
    """Some of the tensors of a checkpoint."""

    def __init__(self, source: Checkpoint, names: set[str]) -> None:
        self._source = source
        self._names = names

    def specs(self) -> dict[str, TensorSpec]:
        return {name: spec for name, spec in self._source.specs().items() if name in self._names}

    def load(self, name: str) -> Array:
        return self._source.load(name)


def merge_folder(base: Path, adapter: Path, output: Path) -> list[str]:
    """Write the merged checkpoint with the base's types and shards; return the layers changed."""
    read_config(base)  # refuses what is quantized: an adapter cannot be added to nibbles
    source = SafetensorsCheckpoint(base)
    lora = LoraAdapter(adapter)
    merged = MergedCheckpoint(source, lora)
    output.mkdir(parents=True, exist_ok=True)
    with progress_bar("Merging", source) as progress:
        for file, shard in source.shards.items():
            write_safetensors(output / file, _Part(merged, set(shard.specs())), progress=progress)
    for path in sorted(base.iterdir()):
        if path.is_file() and path.suffix in _COPIED:
            shutil.copyfile(path, output / path.name)
    return lora.layers()
