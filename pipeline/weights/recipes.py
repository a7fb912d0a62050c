"""Recipes: folders with all sources of a set of weights, from which scripts/build_weights makes it.

A folder has recipe.json with the name of the base model and the contents of task.json, an adapter in PEFT's layout
and, where the weights are not rounded plainly, the result of the AWQ search. What the drafter is made from is optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.weights.bases import BASES, GgufBase
from pipeline.weights.errors import CheckpointError
from serving.errors import WeightsError
from serving.weights.lock import WeightsLock

FILE: Final = "recipe.json"
LOCK: Final = "weights.lock"
_FOLDER: Final = Path("examples") / "honeycomb"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One set of weights.

    Args:
        base: the model that the adapter was trained on.
        task_file: the contents of task.json.
        context_length: the context length of the weights in tokens, if less than the base's; KV memory is sized for it.
    """

    folder: Path
    base: GgufBase
    task_file: Mapping[str, Any]
    context_length: int | None = None

    @property
    def name(self) -> str:
        """The name of the weights."""
        return str(self.task_file["name"])

    @property
    def search(self) -> Path:
        """The AWQ search result, which may not be there."""
        return self.folder / "awq_search.safetensors"

    def weights(self, root: Path) -> Path:
        """The folder of the built weights in the package `root`."""
        return root / "weights" / self.name

    def lock(self, root: Path) -> Path:
        """The lock of the weights: the package's if they are in use, and otherwise that in the recipe's folder."""
        return root / LOCK if locked_names(root / LOCK) == [self.name] else self.folder / LOCK


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources of a set of weights.

    Args:
        cache: folder for downloads.
        adapter: folder of the LoRA adapter; None, or a folder that does not exist, means no adapter.
        search: file of the AWQ search result; None rounds without one.
    """

    recipe: Recipe
    cache: Path
    adapter: Path | None
    search: Path | None


def read_recipe(folder: Path) -> Recipe:
    """Read the recipe in a folder.

    Raises:
        CheckpointError: there is none, or it has another form, or its base is unknown.
    """
    path = folder / FILE
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; check it out again") from error
    if not isinstance(value, dict) or value.keys() - {"context_length"} != {"base", "task"}:
        raise CheckpointError(
            f'{path} is not {{"base": …, "task": …, "context_length": …}}; only the last may be left out'
        )
    base, task, context_length = value["base"], value["task"], value.get("context_length")
    if not isinstance(base, str) or base not in BASES:
        raise CheckpointError(f"{path}: the base {base!r} is unknown; known are {', '.join(BASES)}")
    if context_length is not None and (type(context_length) is not int or context_length < 1):
        raise CheckpointError(f"{path}: context_length is {context_length!r}, not a positive number of tokens")
    if not isinstance(task, dict) or not all(isinstance(task.get(key), str) for key in ("task", "name")):
        raise CheckpointError(f"{path}: task is not an object with task and name; write it as a task.json")
    return Recipe(folder, BASES[base], task, context_length)


def recipes(root: Path) -> dict[str, Recipe]:
    """The recipes of a package by the names of their weights.

    Raises:
        CheckpointError: a recipe cannot be read, or two have the same name.
    """
    found: dict[str, Recipe] = {}
    for path in sorted((root / _FOLDER).glob(f"*/{FILE}")):
        recipe = read_recipe(path.parent)
        if recipe.name in found:
            raise CheckpointError(f"{path} and {found[recipe.name].folder} are both of {recipe.name}; rename one")
        found[recipe.name] = recipe
    return found


def find_recipe(root: Path, name: str | None = None) -> Recipe:
    """The recipe of the weights with that name; None means those in use.

    Raises:
        CheckpointError: no recipe has the name, one cannot be read, or two have the same.
        WeightsError: the name is None, and weights.lock cannot be read.
    """
    known = recipes(root)
    wanted = name or ", ".join(entry.name for entry in WeightsLock.load(root / LOCK).weights)
    if wanted not in known:
        names = ", ".join(known) or "none"
        why = "" if name else f", which {LOCK} names: fetch it, or scripts/use_weights one that has"
        raise CheckpointError(f"no recipe makes {wanted}{why}. Recipes in {_FOLDER} make: {names}")
    return known[wanted]


def locked_names(lock: Path) -> list[str]:
    """The names of the weights in a lock; none if it cannot be read."""
    try:
        return [entry.name for entry in WeightsLock.load(lock).weights]
    except WeightsError:
        return []
