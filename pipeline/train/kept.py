"""Keeps beside a checkpoint what a better version of it is trained from: `NAME.train` beside `NAME`.

The base is not kept: it is large, and can be fetched again.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.prepare.record import read_record
from pipeline.prepare.run import work_path
from pipeline.prepare.steps import search_path
from pipeline.train.record import STATE
from pipeline.weights.atomic import replace_folder, write_json
from pipeline.weights.checkpoint_config import read_config_json
from pipeline.weights.errors import CheckpointError
from pipeline.weights.recipes import recipes

_ADAPTER, _SEARCH, _DATA, _BASE = "adapter", "search.safetensors", "data", "base.json"
_DATA_OF_RECIPES: Final = Path("build") / "data"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a checkpoint was made from.

    Args:
        base: a name of `BASES`, hf://…, https://… or a folder.
        adapter: folder of the adapter that was merged into it.
        search: the AWQ search result with which it was quantized; None where it has 16 bits.
        data: folder of train.jsonl, validation.jsonl and test*.jsonl as they were learned; None where it is not there.
    """

    base: str
    adapter: Path
    search: Path | None
    data: Path | None


def kept_folder(weights: Path) -> Path:
    """Where what is kept of a checkpoint or an adapter lies: beside it, because a lock has all files of the folder."""
    return weights.with_name(f"{weights.name}.train")


def keep(weights: Path, kept: Kept) -> None:
    """Copy what a checkpoint was made from into `kept_folder`, in the place of what was there."""
    folder = kept_folder(weights)
    staging = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(kept.adapter, staging / _ADAPTER, ignore=shutil.ignore_patterns(STATE, "*.partial"))
    if kept.search is not None:
        shutil.copyfile(kept.search, staging / _SEARCH)
    if kept.data is not None:
        shutil.copytree(kept.data, staging / _DATA)
    write_json(staging / _BASE, {"base": kept.base})
    replace_folder(staging, folder)


def prepared_from(weights: Path) -> tuple[Path, Path | None]:
    """The adapter that scripts/prepare --keep merged into a checkpoint, and the search result that it rounded with.

    Raises:
        CheckpointError: scripts/prepare did not make it, or not from an adapter.
        PrepareError: its record cannot be read.
    """
    record = read_record(weights)
    if record is None or "adapter" not in record.options:
        raise CheckpointError(f"{weights}: scripts/prepare left no record of an adapter; run the same command again")
    options, adapter = record.options, Path(record.options["adapter"])
    if not options["quantize"]:
        return adapter, None
    last = next(step.name for step in reversed(record.steps) if step.name.startswith("quantize"))
    if last == "quantize" and "reuse_search" in options:
        return adapter, Path(options["reuse_search"])
    return adapter, search_path(work_path(weights), last.removeprefix("quantize"))


def find_kept_of_adapter(adapter: Path, weights: Path, base: str | None) -> Kept:
    """What an adapter that is served on demand is trained on from: its base, and data that are kept beside it.

    Args:
        adapter: its folder.
        weights: folder of the checkpoint on which it is served.
        base: the unquantized base, as in `Kept`; None for that which is kept, or `weights` if that has 16 bits.

    Raises:
        CheckpointError: the base is not known.
    """
    folder = kept_folder(adapter)
    if base is None and (folder / _BASE).is_file():
        base = str(json.loads((folder / _BASE).read_text("utf-8"))["base"])
    if base is None and "quantization_config" not in read_config_json(weights):
        base = str(weights)
    if base is None:
        raise CheckpointError(
            f"{weights.name} is quantized, and adapters are trained on the base before: name it with --base, as "
            "scripts/train does"
        )
    return Kept(base, adapter, None, folder / _DATA if (folder / _DATA).is_dir() else None)


def find_kept(root: Path, weights: Path) -> Kept:
    """What a checkpoint was made from: kept beside it, or that of its recipe with build/data.

    Raises:
        CheckpointError: nothing is known of it.
    """
    folder = kept_folder(weights)
    if (folder / _BASE).is_file():
        search, data = folder / _SEARCH, folder / _DATA
        base = str(json.loads((folder / _BASE).read_text("utf-8"))["base"])
        return Kept(base, folder / _ADAPTER, search if search.is_file() else None, data if data.is_dir() else None)
    for recipe in recipes(root).values():
        if recipe.weights(root).resolve() == weights.resolve():
            found = recipe.search if recipe.search.is_file() else None
            made = root / _DATA_OF_RECIPES
            return Kept(recipe.base.name, recipe.folder, found, made if (made / "train.jsonl").is_file() else None)
    raise CheckpointError(
        f"{folder} is not there, and {weights.name} has no recipe, so its adapter is not known. scripts/train and "
        "scripts/improve keep it; run scripts/train once more with its examples"
    )
