"""Checks a user's checkpoint and copies the files that a package needs from it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.package.errors import PackageError
from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import shard_names

_INDEX: Final = "model.safetensors.index.json"
_MODEL: Final = "model.safetensors"
_COMPANIONS: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "draft.model",
    "draft.ngrams",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
)
_TEMPLATES: Final = ("*.jinja", "additional_chat_templates/*.jinja")
_CODE_WEIGHTS: Final = ("*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True)
class OwnCheckpoint:
    """A folder in Hugging Face's layout; it is only read.

    Args:
        folder: where it is.
        config: its config.json.
        files: names of the files that a package needs.
        size: bytes of these files together.
    """

    folder: Path
    config: dict[str, Any]
    files: tuple[str, ...]
    size: int

    @property
    def quantization(self) -> str | None:
        """The quantization method that config.json names; None if the weights are not quantized."""
        found = self.config.get("quantization_config")
        return str(found.get("quant_method", "unknown")) if isinstance(found, dict) else None

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the files that a package does not need."""
        taken = {name.partition("/")[0] for name in self.files}
        return tuple(sorted(path.name for path in self.folder.iterdir() if path.name not in taken))


def open_checkpoint(folder: Path) -> OwnCheckpoint:
    """Read and check a checkpoint; tensors are not read.

    Raises:
        PackageError: a required file is missing, or the weights are in a format that is never loaded.
    """
    if not folder.is_dir():
        raise PackageError(f"{folder}: no such folder; give the folder of a checkpoint in Hugging Face's layout")
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise PackageError(
            f"{folder} is a LoRA adapter; merge it first: scripts/merge_lora BASE {folder} MERGED, then give MERGED"
        )
    config = _read_config(folder)
    tensors = _tensor_files(folder)
    if not (folder / "tokenizer.json").is_file():
        raise PackageError(
            f"{folder} has no tokenizer.json; write one with transformers: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    names = (name for name in _COMPANIONS if (folder / name).is_file())
    templates = (str(path.relative_to(folder)) for pattern in _TEMPLATES for path in sorted(folder.glob(pattern)))
    files = (*names, *templates, *tensors)
    return OwnCheckpoint(folder, config, files, sum((folder / name).stat().st_size for name in files))


def place(checkpoint: OwnCheckpoint, target: Path, progress: Callable[[int], None]) -> bool:
    """Put the files into `target`, tensors as hard links where the file system allows it.

    Small files are always copied, so that editing them in the package does not change the checkpoint.

    Returns:
        Whether all tensor files are hard links.
    """
    target.mkdir(parents=True)
    all_linked = True
    for name in checkpoint.files:
        (target / name).parent.mkdir(exist_ok=True)
        source = (checkpoint.folder / name).resolve()  # the hub's cache has symbolic links, which a lock refuses
        if name.endswith(".safetensors"):
            all_linked &= _link_or_copy(source, target / name)
        else:
            shutil.copyfile(source, target / name)
        progress(source.stat().st_size)
    return all_linked


def _link_or_copy(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        return False
    return True


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise PackageError(
            f"{folder} has no config.json; give the folder of a whole checkpoint, such as "
            "scripts/quantize_awq or transformers' save_pretrained writes"
        )
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise PackageError(f"{path} holds a {type(config).__name__}, not an object")
    return config


def _tensor_files(folder: Path) -> tuple[str, ...]:
    """The single tensor file, or the index and its shards."""
    if (folder / _INDEX).is_file():
        names = _shards(folder / _INDEX)
    elif (folder / _MODEL).is_file():
        return (_MODEL,)
    elif any(path for pattern in _CODE_WEIGHTS for path in folder.glob(pattern)):
        raise PackageError(
            f"{folder} has only pickled weights, which can run code when they are loaded; safetensors is required. "
            "Convert with transformers: model.save_pretrained(FOLDER, safe_serialization=True)"
        )
    else:
        raise PackageError(f"{folder} has neither {_MODEL} nor {_INDEX}; give the folder of a whole checkpoint")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise PackageError(f"{folder} lacks {', '.join(missing)}, which {_INDEX} names; fetch the checkpoint again")
    return (_INDEX, *names)


def _shards(index: Path) -> list[str]:
    try:
        return shard_names(index)
    except CheckpointError as error:
        raise PackageError(str(error)) from error
