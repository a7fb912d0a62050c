"""Write the files of an AWQ checkpoint from an unquantized one and a search result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .atomic import partial_file, write_json
from .awq_checkpoint import AwqCheckpoint, quantization_config
from .awq_search_file import save_search_result
from .awq_search_result import AwqSearchResult
from .console import progress_bar
from .errors import CheckpointError
from .safetensors_io import SafetensorsCheckpoint, write_safetensors
from .tensors import Checkpoint, Fingerprinted, Progress, no_progress

_COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
)


def quantize_folder(
    model: Path,
    config: dict[str, Any],
    output: Path,
    search: Callable[[str], AwqSearchResult],
    save_search: Path | None,
) -> AwqSearchResult:
    """Write the AWQ folder of a checkpoint; returns the search result that it was written with.

    Args:
        model: folder of the checkpoint.
        config: its config.json.
        output: the new folder.
        search: gives the search result for the checkpoint's fingerprint.
        save_search: file for the search result, if any.

    Raises:
        CheckpointError: the checkpoint cannot be read, or the result does not belong to it.
    """
    source = SafetensorsCheckpoint(model)
    result = search(Fingerprinted(source).fingerprint())
    if save_search is not None:
        save_search_result(save_search, result)
    with progress_bar("Packing", source) as progress:
        write_awq_model(output / "model.safetensors", source, result, progress)
    write_companions(model, config, result.group_size, output)
    return result


def write_awq_model(path: Path, source: Checkpoint, search: AwqSearchResult, progress: Progress = no_progress) -> None:
    """Write the quantized tensors to one file.

    Raises:
        CheckpointError: the search result belongs to another checkpoint; no file is left.
    """
    seen = Fingerprinted(source)
    with partial_file(path) as partial:
        write_safetensors(partial, AwqCheckpoint(seen, search), progress=progress)
        check_fingerprint(seen.fingerprint(), search)


def check_fingerprint(fingerprint: str, search: AwqSearchResult) -> None:
    """Check that the search result belongs to the checkpoint with this fingerprint.

    Raises:
        CheckpointError: it belongs to another one.
    """
    if search.fingerprint not in (None, fingerprint):
        raise CheckpointError(
            f"the AWQ search result belongs to the checkpoint {search.fingerprint}, these weights are "
            f"{fingerprint}: the base or the adapter has changed since. Run the search again "
            "(scripts/quantize_awq --help says how), or pass --plain to round without it."
        )


def awq_config(config: dict[str, Any], group_size: int) -> dict[str, Any]:
    """The quantized model's config.json, from the unquantized one's."""
    dtype_key = "dtype" if "dtype" in config else "torch_dtype"
    return {**config, dtype_key: "float16", "quantization_config": quantization_config(group_size)}


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of an unquantized checkpoint.

    Raises:
        CheckpointError: it is missing, or the checkpoint is quantized.
    """
    path = folder / "config.json"
    if not path.exists():
        raise CheckpointError(f"{folder} has no config.json; give a folder of a Hugging Face checkpoint")
    config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if "quantization_config" in config:
        raise CheckpointError(f"{folder} is quantized already; give the checkpoint that it was made from")
    return config


def write_companions(source: Path, config: dict[str, Any], group_size: int, output: Path) -> None:
    """Write all files of an AWQ folder except the tensors; its generation config is greedy."""
    write_json(output / "config.json", awq_config(config, group_size))
    for name in _COMPANIONS:
        if (source / name).exists():
            shutil.copyfile(source / name, output / name)
    generation = output / "generation_config.json"
    if generation.exists():
        write_json(generation, greedy(json.loads(generation.read_text("utf-8"))))


def greedy(generation_config: dict[str, Any]) -> dict[str, Any]:
    """A generation config without sampling parameters."""
    sampling = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p")
    kept = {key: value for key, value in generation_config.items() if key not in sampling}
    return {**kept, "do_sample": False}
