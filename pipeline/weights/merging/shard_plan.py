"""Share the tensors of a checkpoint out to files, as the base does or by size, and write their index."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.weights.atomic import write_json
from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import TensorSpec

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(text: str) -> int:
    """A size such as 5GB in bytes.

    Raises:
        CheckpointError: it is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?B)?", text.strip().upper())
    size = int(float(match[1]) * _UNITS[match[2] or ""]) if match else 0
    if size < 1:
        raise CheckpointError(f"{text!r} is not a size; give one such as 5GB or 500MB")
    return size


def plan_shards(specs: dict[str, TensorSpec], of_base: dict[str, list[str]], limit: int | None) -> dict[str, list[str]]:
    """The names of each file's tensors.

    Args:
        specs: of the result.
        of_base: the base's files.
        limit: largest size of a file in bytes, exceeded only by a tensor that is larger itself; None for the base's
            files. A tensor that the base does not have then goes to the last file.
    """
    known = {name for names in of_base.values() for name in names}
    ordered = [name for names in of_base.values() for name in names if name in specs]
    ordered += sorted(specs.keys() - known)
    if limit is None:
        shards = {file: [name for name in names if name in specs] for file, names in of_base.items()}
        shards = {file: names for file, names in shards.items() if names}
        shards[list(shards)[-1]] += ordered[len(ordered) - len(specs.keys() - known) :]
        return shards
    groups: list[list[str]] = [[]]
    size = 0
    for name in ordered:
        if groups[-1] and size + specs[name].nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += specs[name].nbytes
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{i:05}-of-{len(groups):05}.safetensors": names for i, names in enumerate(groups, start=1)}


def write_index(folder: Path, specs: dict[str, TensorSpec], shards: dict[str, list[str]]) -> None:
    """Write the index, unless the only file is model.safetensors."""
    if list(shards) == ["model.safetensors"]:
        return
    weight_map = {name: file for file, names in shards.items() for name in names}
    total = sum(spec.nbytes for spec in specs.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)
