"""Builds weights from a base, an adapter and an AWQ search result, or from a base alone, and replaces the old folder.

The new folder appears whole, with one rename.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pipeline.environment.waiting_lock import waiting_lock
from pipeline.weights.atomic import replace_folder, write_json, write_text
from pipeline.weights.awq_checkpoint import awq_config, write_awq_model
from pipeline.weights.awq_search_result import AwqSearchResult, load_search_result
from pipeline.weights.base_wheels import fetch_base
from pipeline.weights.bases import BASES
from pipeline.weights.console import progress_bar
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from pipeline.weights.gguf_source import (
    GgufCheckpoint,
    chat_template,
    generation_config,
    tokenizer_config,
    tokenizer_json,
)
from pipeline.weights.merging.lora_adapter import MergedCheckpoint, PeftAdapter
from pipeline.weights.recipes import Sources
from pipeline.weights.safetensors_io import write_safetensors
from pipeline.weights.tensors import CheckpointTensors
from serving.drafting.ngrams import DRAFT_TABLE, NgramTable
from serving.text import Tokenizer
from serving.weights import WeightsLock
from serving.weights.draft_weights import DRAFT_MODEL

MODEL = "model.safetensors"
# In the adapter's folder: lines {"question": …, "answer": …} with answers as the model writes them.
ANSWERS = "answers.jsonl"


def build(sources: Sources, output: Path, lock: Path | None) -> None:
    """Build the quantized weights in a folder beside `output`, then rename it.

    An interrupted build is resumed: a tensor file that matches the lock is not built again.

    Raises:
        CheckpointError: a source cannot be used.
    """
    search = _load_search(sources)
    gguf = _base(sources)
    staging = output.with_name(f".{output.name}.partial")
    if lock is None or not _is_locked(staging / MODEL, lock):
        shutil.rmtree(staging, ignore_errors=True)
        source = _merged(gguf, sources.adapter)
        with progress_bar("Quantizing", source) as progress:
            write_awq_model(staging / MODEL, source, search, progress)
    write_json(staging / "config.json", awq_config(_config(sources, gguf), search))
    write_tokenizer(gguf, staging)
    write_json(staging / "task.json", dict(sources.recipe.task_file))
    if sources.adapter is not None:
        _write_drafter(sources.adapter, staging)
    replace_folder(staging, output)


def build_unquantized(sources: Sources, output: Path) -> None:
    """Write the merged checkpoint in fp32, for training, the AWQ search and comparisons.

    Raises:
        CheckpointError: a source cannot be used.
    """
    gguf = _base(sources)
    write_json(output / "task.json", dict(sources.recipe.task_file))
    _write_checkpoint(gguf, _merged(gguf, sources.adapter), _config(sources, gguf), output, None)


def _write_checkpoint(
    gguf: GgufCheckpoint,
    source: CheckpointTensors,
    config: dict[str, Any],
    folder: Path,
    search: AwqSearchResult | None,
) -> None:
    """Write tensors, config.json and the tokenizer's files; rounded as a search result says, or in fp32 for None."""
    with progress_bar("Writing" if search is None else "Quantizing", source) as progress:
        if search is None:
            write_safetensors(folder / MODEL, source, progress=progress)
        else:
            write_awq_model(folder / MODEL, source, search, progress)
    write_json(folder / "config.json", config if search is None else awq_config(config, search))
    write_json(folder / "tokenizer_config.json", tokenizer_config(gguf.metadata, config["max_position_embeddings"]))
    write_tokenizer(gguf, folder)


def one_at_a_time(cache: Path) -> AbstractContextManager[int]:
    """The lock of the cache folder, for which other builds wait."""
    cache.mkdir(parents=True, exist_ok=True)
    return waiting_lock(cache / "build.lock", "Waiting for another build of the weights")


def _base(sources: Sources) -> GgufCheckpoint:
    base = sources.recipe.base
    return GgufCheckpoint(fetch_base(base, sources.cache), tie_head=base.tie_head)


def _config(sources: Sources, gguf: GgufCheckpoint) -> dict[str, Any]:
    config, limit = gguf.config(), sources.recipe.context_length
    if limit is not None and limit > config["max_position_embeddings"]:
        raise CheckpointError(
            f"{sources.recipe.folder}: context_length {limit:,}; {sources.recipe.base.name} has "
            f"{config['max_position_embeddings']:,}, lower it"
        )
    return config if limit is None else config | {"max_position_embeddings": limit}


def _load_search(sources: Sources) -> AwqSearchResult:
    if sources.search is None:
        return AwqSearchResult(sources.recipe.base.group_size)
    if not sources.search.exists():
        raise CheckpointError(f"{sources.search} is missing; check it out again, or pass --plain to round without it")
    return load_search_result(sources.search)


def _merged(base: CheckpointTensors, adapter: Path | None) -> CheckpointTensors:
    if adapter is None or not adapter.exists():
        return base
    return MergedCheckpoint(base, PeftAdapter(adapter))


def write_tokenizer(gguf: GgufCheckpoint, folder: Path) -> None:
    """Write tokenizer.json and generation_config.json, which names the end token."""
    tokenizer = tokenizer_json(gguf.metadata)
    write_text(folder / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")))
    write_json(folder / "generation_config.json", generation_config(gguf.metadata))


def _write_drafter(adapter: Path, folder: Path) -> None:
    """Write the drafter's files, if the adapter's folder has their sources."""
    for old in folder.glob("draft.*"):  # from an earlier build
        old.unlink()
    if (adapter / ANSWERS).exists():
        write_draft_table(adapter / ANSWERS, folder)
    if (adapter / DRAFT_MODEL).exists():
        shutil.copyfile(adapter / DRAFT_MODEL, folder / DRAFT_MODEL)


def _is_locked(path: Path, lock: Path) -> bool:
    """Whether the file matches the lock's file of that name."""
    if not path.exists() or not lock.exists():
        return False
    digests = {file.path: file.digest for entry in WeightsLock.load(lock).weights for file in entry.files}
    return digests.get(path.name) == f"sha256:{sha256(path)}"


def build_base(name: str, output: Path, cache: Path, *, quantize: bool = True) -> None:
    """Fetch a base and write its tensors, tokenizer and chat template.

    Args:
        name: a key of `BASES`.
        output: the new folder; after an error it does not exist.
        cache: folder for downloads.
        quantize: whether to round to four bits, without a search; otherwise tensors are fp32.

    Raises:
        CheckpointError: the base is unknown or cannot be fetched, or the folder exists.
    """
    if name not in BASES:
        raise CheckpointError(f"the base {name!r} is unknown; known are {', '.join(BASES)}")
    if output.exists():
        raise CheckpointError(f"{output} exists already; give another folder, or remove it")
    base = BASES[name]
    staging = output.with_name(f".{output.name}.partial")
    with one_at_a_time(cache):
        gguf = GgufCheckpoint(fetch_base(base, cache), tie_head=base.tie_head)
        search = AwqSearchResult(base.group_size) if quantize else None
        _write_checkpoint(gguf, gguf, gguf.config(), staging, search)
        write_text(staging / "chat_template.jinja", chat_template(gguf.metadata))
        replace_folder(staging, output)


def write_draft_table(answers: Path, folder: Path) -> None:
    """Count the n-grams of `answers` in tokens of the checkpoint in `folder`, and write the table there.

    Raises:
        CheckpointError: a line of `answers` has another form.
    """
    tokenizer = Tokenizer.from_dir(folder)
    sequences = (tokenizer.encode(answer, add_bos=False) for answer in _read(answers))
    NgramTable.build(sequences).save(folder / DRAFT_TABLE)


def _read(path: Path) -> Iterator[str]:
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # a line may contain other line separators
    for number, line in enumerate(lines, start=1):
        try:
            answer = json.loads(line)["answer"]
        except (ValueError, KeyError, TypeError):
            answer = None
        if not isinstance(answer, str):
            raise CheckpointError(
                f'{path}:{number} is not {{"answer": …}}; write the file again with scripts/dev/make_data --answers'
            )
        yield answer
