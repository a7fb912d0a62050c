"""The models that the package can serve: the one in use, those in models or with a recipe, locked ones in weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.environment.journal import FOLDER
from pipeline.package.errors import PackageError
from pipeline.weights.recipes import Recipe, recipes
from serving.errors import WeightsError
from serving.weights import LockedWeights, WeightsLock
from tasks.errors import TaskError
from tasks.task import read_task_file

STANZA: Final = "weights.yaml"  # the part `weights:` of cog.yaml


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One model.

    Args:
        root: of the package.
        name: of its weights.
        is_used: whether cog.yaml and weights.lock are its.
    """

    root: Path
    name: str
    is_used: bool

    @property
    def folder(self) -> Path:
        """What is kept of a model that is not in use, and its task file if its source has none."""
        recipe = self._recipe
        return self.root / FOLDER / self.name if recipe is None else recipe.folder

    @property
    def _recipe(self) -> Recipe | None:
        return recipes(self.root).get(self.name)

    @property
    def weights(self) -> Path:
        """The checkpoint, which may not be there."""
        return self.root / "weights" / self.name

    @property
    def lock(self) -> Path:
        """Its lock while it is not in use, which may not be there: beside the checkpoint, or in its folder."""
        beside = self.weights.with_name(f"{self.name}.lock")
        return beside if beside.is_file() else self.folder / "weights.lock"

    def entry(self) -> LockedWeights:
        """What its lock says.

        Raises:
            PackageError: the lock is missing or another model's; the message says how to make it.
        """
        path = self.root / "weights.lock" if self.is_used else self.lock
        if not path.is_file():
            raise PackageError(f"{self.name} has no lock. {self.remedy}")
        entries = WeightsLock.load(path).weights
        if [entry.name for entry in entries] != [self.name]:
            found = ", ".join(entry.name for entry in entries) or "nothing"
            raise PackageError(f"{path} locks {found}, not {self.name}. {self.remedy}")
        return entries[0]

    @property
    def remedy(self) -> str:
        """How to lock it."""
        if (self.folder / STANZA).is_file():
            return f"Run scripts/lock_weights {self.name} where its source can be reached, and commit {FOLDER}/."
        if self._recipe is not None:
            return f"Run scripts/build_weights {self.name} --relock, then scripts/lock_weights {self.name}."
        return f"Run scripts/lock_weights weights/{self.name}."

    def task_file(self) -> Mapping[str, Any]:
        """The content of its task file.

        Raises:
            PackageError: it has no task file that names a task.
        """
        if self._recipe is not None:
            return self._recipe.task_file
        folder = self.folder / "task" if (self.folder / "task").is_dir() else self.weights
        try:
            return read_task_file(folder)
        except TaskError as error:
            raise PackageError(f"{self.name}: {error}. Write one with scripts/write_task, then lock again.") from error

    def state(self) -> str:
        """What is still needed before it can answer, for people."""
        try:
            entry = self.entry()
        except (PackageError, WeightsError) as error:
            return f"not locked: {error}"
        sources = ", ".join(f"{source.uri} ({source.fingerprint[:19]})" for source in entry.sources)
        present = all((self.weights / file.path).is_file() for file in entry.files)
        lock = (self.root / "weights.lock" if self.is_used else self.lock).relative_to(self.root)
        command = f"scripts/fetch --lock {lock}" if self._recipe is None else f"scripts/build_weights {self.name}"
        there = "its files are there" if present else f"its files are not there yet: {command}"
        return f"locked, {entry.size:,} bytes from {sources}; {there}"


def used_name(root: Path) -> str:
    """The name of the weights in cog.yaml.

    Raises:
        PackageError: cog.yaml does not name exactly one set of weights.
    """
    try:
        config: Any = yaml.safe_load((root / "cog.yaml").read_text("utf-8"))
        (stanza,) = config["weights"]
        return str(stanza["name"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise PackageError(f"{root / 'cog.yaml'} does not name one set of weights: {error!r}") from error


def known_models(root: Path) -> list[KnownModel]:
    """All of them by name."""
    used = used_name(root)
    names = {used}
    names |= {path.name for path in (root / FOLDER).glob("*/") if not path.name.startswith(".")}
    names |= recipes(root).keys()
    names |= {path.stem for path in (root / "weights").glob("[!.]*.lock")}
    names |= {path.parent.name for path in (root / "weights").glob("[!.]*/task.json")}
    return [KnownModel(root, name, name == used) for name in sorted(names)]
