"""The default weights: which folder they are, and building them when they are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pipeline.paths import ROOT, WEIGHTS_LOCK
from serving.errors import WeightsError
from serving.weights.lock import WeightsLock, default_weights_dir

_COMMAND = ROOT / "scripts" / "build_weights"  # in an environment of its own, which may differ from this process's
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
        WeightsError: as `default_weights`.
    """
    if folder is not None and folder.resolve() != default_weights().resolve():
        return folder
    _build_if_missing()
    return default_weights()


def base_or_default(folder: Path | None) -> Path:
    """The unquantized base that a command was given, or else that of the default weights, which is written if need be.

    Exits where it cannot be written.
    """
    if folder is not None:
        return folder
    base = ROOT / "weights" / "base"
    if not (base / _WRITTEN_LAST).exists():
        sys.stderr.write("Writing the base model (once, under a minute)\n")
        _run("--adapter", "none", "--unquantized", str(base))
    return base


def ensure_weights() -> None:
    """Build the default weights if a file of the lock is missing; progress on stderr.

    Weights that somebody else provides (WEIGHTS_DIR) are theirs to complete. Exits where they cannot be built.
    """
    if "WEIGHTS_DIR" not in os.environ:
        _build_if_missing()


def _build_if_missing() -> None:
    missing = _missing_files()
    if not missing:
        return
    if not _COMMAND.exists():  # a package that scripts/new_package made
        sys.exit(
            f"{default_weights()} lacks {missing[0]}, which weights.lock names; put the checkpoint there, "
            "or set WEIGHTS_DIR"
        )
    sys.stderr.write("Building the default weights (once, under 5 minutes)\n")
    _run()


def _run(*options: str) -> None:
    built = subprocess.run([str(_COMMAND), *options], stdout=sys.stderr, stdin=subprocess.DEVNULL)
    if built.returncode:
        sys.exit(built.returncode)


def _missing_files() -> list[str]:
    try:
        (entry,) = WeightsLock.load(WEIGHTS_LOCK).weights
    except (WeightsError, ValueError):
        return []  # the predictor says what is wrong with the lock
    return [file.path for file in entry.files if not (default_weights() / file.path).exists()]
