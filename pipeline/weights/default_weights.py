"""The weights in use: which folder they are, and building them, or those of another recipe, when they are not there.

They are the default weights, unless scripts/use_weights has chosen others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pipeline.paths import ROOT, WEIGHTS_LOCK
from pipeline.weights.errors import CheckpointError
from pipeline.weights.recipes import Recipe, find_recipe
from serving.errors import WeightsError
from serving.weights.lock import WeightsLock, default_weights_dir

_WRITTEN_LAST = "generation_config.json"


def default_weights() -> Path:
    """The folder of the weights that weights.lock names, whether they are built or not.

    Raises:
        WeightsError: the lock cannot be read, or has several sets of weights.
    """
    return default_weights_dir(WEIGHTS_LOCK)


def weights_or_default(folder: Path | None) -> Path:
    """The folder that a command was given, or else the default weights, which are built if need be.

    Raises:
        WeightsError: weights.lock cannot be read, or has several sets of weights.
    """
    if folder is not None and folder.resolve() != default_weights().resolve():
        return folder
    _build_if_missing()
    return default_weights()


def base_or_default(folder: Path | None) -> Path:
    """The unquantized base that a command was given, or else that of the default weights, which is written if need be.

    It exits where the base cannot be written.
    """
    if folder is not None:
        return folder
    try:
        recipe = find_recipe(ROOT)
    except (CheckpointError, WeightsError) as error:
        sys.exit(f"{error}; or give a base")
    return _ensure_base(recipe)


def ensure_weights() -> None:
    """Build the default weights if a file of the lock is missing; progress on stderr.

    Weights that somebody else provides (WEIGHTS_DIR) are theirs to complete. It exits where they cannot be built.
    """
    if "WEIGHTS_DIR" not in os.environ:
        _build_if_missing()


def ensure_recipe(name: str, *, with_base: bool = False) -> None:
    """Build the weights that a recipe makes if a file of their lock is missing; progress on stderr.

    It exits where they cannot be built.

    Raises:
        CheckpointError: no recipe has this name, or one cannot be read.
    """
    if _missing_files(find_recipe(ROOT, name).lock(ROOT)):
        _build(name)
    if with_base:
        _ensure_base(find_recipe(ROOT, name))


def _ensure_base(recipe: Recipe) -> Path:
    base = ROOT / "weights" / recipe.base.name
    if not (base / _WRITTEN_LAST).exists():
        sys.stderr.write(f"Writing the base model {recipe.base.name} (once, about a minute after its download)\n")
        _run(recipe.name, "--adapter", "none", "--unquantized", str(base))
    return base


def _build_if_missing() -> None:
    missing = _missing_files(WEIGHTS_LOCK)
    if not missing:
        return
    if not _command().exists():  # a package that scripts/new_package made
        sys.exit(
            f"{default_weights()} lacks {missing[0]}, which weights.lock names; put the checkpoint there, "
            "or set WEIGHTS_DIR"
        )
    _build(default_weights().name)


def _build(name: str) -> None:
    sys.stderr.write(f"Building {name} (once, a few minutes after the download of its base)\n")
    _run(name)


def _run(*options: str) -> None:
    built = subprocess.run([str(_command()), *options], stdout=sys.stderr, stdin=subprocess.DEVNULL)
    if built.returncode:
        sys.exit(built.returncode)


def _command() -> Path:
    return ROOT / "scripts" / "build_weights"  # in an environment of its own, which may differ from this process's


def _missing_files(lock: Path) -> list[str]:
    """The files that a lock names and that are not in weights/NAME."""
    try:
        (entry,) = WeightsLock.load(lock).weights
    except (WeightsError, ValueError):
        return []  # the predictor says what is wrong with the lock
    return [file.path for file in entry.files if not (ROOT / "weights" / entry.name / file.path).exists()]
