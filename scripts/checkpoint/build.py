"""The default weights, from the recipe, the adapter and the search result.

Owns: the order of the steps, what is skipped, and that a folder of weights is replaced whole. Knows
nothing of how a step works.

    build(Sources(adapter, search), Path("weights/honeycomb-nlq"), Path("weights.lock"))
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving.draft_weights import DRAFT_MODEL
from serving.weights import WeightsLock

from .atomic import write_json, write_text
from .awq_search_file import load_search_result
from .awq_search_result import AwqSearchResult
from .console import progress_bar, say
from .download import fetch_base, sha256
from .draft_table import ANSWERS, write_draft_table
from .errors import CheckpointError
from .gguf_source import GgufCheckpoint
from .lora import LoraAdapter, MergedCheckpoint
from .quantize import awq_config, write_awq_model
from .recipe import Recipe
from .safetensors_io import write_safetensors
from .tensors import Checkpoint
from .tokenizer_files import generation_config, tokenizer_config, tokenizer_json

MODEL = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Sources:
    """What the weights are made of.

    Args:
        recipe: the base.
        cache: folder for what is fetched.
        adapter: folder of the LoRA adapter; one that does not exist is none.
        search: file of the AWQ search result; None rounds without it.
    """

    recipe: Recipe
    cache: Path
    adapter: Path | None
    search: Path | None


def build(sources: Sources, output: Path, lock: Path | None) -> None:
    """Make the quantized weights in a folder beside `output`, then put it there.

    An interrupted build goes on where it was: a tensor file that is as locked is not made again.
    """
    search = _load_search(sources)
    gguf = GgufCheckpoint(fetch_base(sources.recipe, sources.cache))
    staging = output.with_name(f".{output.name}.partial")
    if lock is None or not _is_locked(staging / MODEL, lock):
        shutil.rmtree(staging, ignore_errors=True)
        source = _merged(gguf, sources.adapter)
        with progress_bar("Quantizing", source) as progress:
            write_awq_model(staging / MODEL, source, search, progress)
    write_json(staging / "config.json", awq_config(gguf.config(), search.group_size))
    _write_tokenizer(gguf, staging)
    write_json(staging / "profile.json", sources.recipe.profile)
    if sources.adapter is not None:
        _write_drafter(sources.adapter, staging)
    _replace_folder(staging, output)


def build_unquantized(sources: Sources, output: Path) -> None:
    """Write the merged checkpoint in fp32, for training, the AWQ search and comparisons."""
    gguf = GgufCheckpoint(fetch_base(sources.recipe, sources.cache))
    source = _merged(gguf, sources.adapter)
    with progress_bar("Writing", source) as progress:
        write_safetensors(output / MODEL, source, progress=progress)
    config = gguf.config()
    write_json(output / "config.json", config)
    write_json(
        output / "tokenizer_config.json", tokenizer_config(gguf.metadata, config["max_position_embeddings"])
    )
    write_json(output / "profile.json", sources.recipe.profile)
    _write_tokenizer(gguf, output)


@contextmanager
def one_at_a_time(cache: Path) -> Iterator[None]:
    """Wait while another process builds; its result is then there."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "build.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another build of the weights")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _load_search(sources: Sources) -> AwqSearchResult:
    if sources.search is None:
        return AwqSearchResult.plain(sources.recipe.group_size)
    if not sources.search.exists():
        raise CheckpointError(
            f"{sources.search} is missing; check it out again, or pass --plain to round without it"
        )
    return load_search_result(sources.search)


def _merged(base: Checkpoint, adapter: Path | None) -> Checkpoint:
    if adapter is None or not adapter.exists():
        return base
    return MergedCheckpoint(base, LoraAdapter(adapter))


def _write_tokenizer(gguf: GgufCheckpoint, folder: Path) -> None:
    tokenizer = tokenizer_json(gguf.metadata)
    write_text(folder / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")))
    write_json(folder / "generation_config.json", generation_config(gguf.metadata))


def _write_drafter(adapter: Path, folder: Path) -> None:
    """What the adapter's folder has for the drafter; neither must be there."""
    for left in folder.glob("draft.*"):  # by an earlier build
        left.unlink()
    if (adapter / ANSWERS).exists():
        write_draft_table(adapter / ANSWERS, folder)
    if (adapter / DRAFT_MODEL).exists():
        shutil.copyfile(adapter / DRAFT_MODEL, folder / DRAFT_MODEL)


def _is_locked(path: Path, lock: Path) -> bool:
    """Whether the file is the one of that name in the only set of the lock."""
    if not path.exists() or not lock.exists():
        return False
    digests = {file.path: file.digest for entry in WeightsLock.load(lock).weights for file in entry.files}
    return digests.get(path.name) == f"sha256:{sha256(path)}"


def _replace_folder(staging: Path, output: Path) -> None:
    for partial in staging.glob("*.partial"):  # of a build that was killed
        partial.unlink()
    old = output.with_name(f".{output.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    staging.rename(output)
    shutil.rmtree(old, ignore_errors=True)
