"""From a Hugging Face folder to an AWQ folder.

Owns: which files an AWQ checkpoint has and what its config says. Knows nothing of where the
unquantized checkpoint or the search came from.

    write_awq_model(Path("out/model.safetensors"), checkpoint, search)
"""

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

_COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")


def quantize_folder(
    model: Path,
    config: dict[str, Any],
    output: Path,
    search: Callable[[str], AwqSearchResult],
    save_search: Path | None,
) -> None:
    """Search on a checkpoint folder, keep what was found if asked to, and write the AWQ folder.

    `search` takes the fingerprint of the checkpoint.
    """
    source = SafetensorsCheckpoint(model)
    result = search(Fingerprinted(source).fingerprint())
    if save_search is not None:
        save_search_result(save_search, result)
    with progress_bar("Packing", source) as progress:
        write_awq_model(output / "model.safetensors", source, result, progress)
    write_companions(model, config, result.group_size, output)


def write_awq_model(
    path: Path, source: Checkpoint, search: AwqSearchResult, progress: Progress = no_progress
) -> None:
    """Write the quantized tensors to one file; it does not appear unless the search fits the source."""
    seen = Fingerprinted(source)
    with partial_file(path) as partial:
        write_safetensors(partial, AwqCheckpoint(seen, search), progress=progress)
        check_fingerprint(seen.fingerprint(), search)


def check_fingerprint(found: str, search: AwqSearchResult) -> None:
    """Raise unless the search result belongs to the checkpoint with this fingerprint."""
    if search.fingerprint not in (None, found):
        raise CheckpointError(
            f"the AWQ search result belongs to the checkpoint {search.fingerprint}, these weights are "
            f"{found}: the base or the adapter has changed since. Run the search again "
            "(scripts/quantize_awq --help says how), or pass --plain to round without it."
        )


def awq_config(config: dict[str, Any], group_size: int) -> dict[str, Any]:
    """config.json of the quantized model, from that of the unquantized one."""
    dtype_key = "dtype" if "dtype" in config else "torch_dtype"
    return {**config, dtype_key: "float16", "quantization_config": quantization_config(group_size)}


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder of an unquantized checkpoint."""
    path = folder / "config.json"
    if not path.exists():
        raise CheckpointError(f"{folder} has no config.json; give a folder of a Hugging Face checkpoint")
    config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if "quantization_config" in config:
        raise CheckpointError(f"{folder} is quantized already; give the checkpoint that it was made from")
    return config


def write_companions(source: Path, config: dict[str, Any], group_size: int, output: Path) -> None:
    """All files of an AWQ folder but the tensors; the generation is greedy whatever the source says."""
    write_json(output / "config.json", awq_config(config, group_size))
    for name in _COMPANIONS:
        if (source / name).exists():
            shutil.copyfile(source / name, output / name)
    generation = output / "generation_config.json"
    if generation.exists():
        write_json(generation, greedy(json.loads(generation.read_text("utf-8"))))


def greedy(generation_config: dict[str, Any]) -> dict[str, Any]:
    """A generation config without sampling."""
    sampling = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p")
    kept = {key: value for key, value in generation_config.items() if key not in sampling}
    return {**kept, "do_sample": False}
