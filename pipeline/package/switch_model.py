"""Switches the package to another locked model: cog.yaml, weights.lock, predict.py and its schema in one step.

Known are the model in use, those in `models` or with a recipe, and locked ones in `weights`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.environment.journal import FOLDER, change_files
from pipeline.package.errors import PackageError
from pipeline.package.new_package import predict_source
from pipeline.package.signature import write_inputs
from pipeline.weights.recipes import Recipe, recipes
from serving.errors import WeightsError
from serving.weights import LockedWeights, WeightsLock
from tasks.errors import TaskError
from tasks.task import read_task_file

STANZA: Final = "weights.yaml"  # the part `weights:` of cog.yaml
_SCHEMA: Final = ".cog/openapi_schema.json"
_BLOCK: Final = re.compile(r"^weights:.*\n(?:\n*[ \-].*(?:\n|\Z))*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One model.

    Args:
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
        """The file of its lock while it is not in use, if it is there: beside the checkpoint, or in its folder."""
        beside = self.weights.with_name(f"{self.name}.lock")
        return beside if beside.is_file() else self.folder / "weights.lock"

    def entry(self) -> LockedWeights:
        """The entry of its lock.

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
        """A sentence that says how to lock it."""
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
    """All models of the package, ordered by name."""
    used = used_name(root)
    names = {used}
    names |= {path.name for path in (root / FOLDER).glob("*/") if not path.name.startswith(".")}
    names |= recipes(root).keys()
    names |= {path.stem for path in (root / "weights").glob("[!.]*.lock")}
    names |= {path.parent.name for path in (root / "weights").glob("[!.]*/task.json")}
    return [KnownModel(root, name, name == used) for name in sorted(names)]


def use_weights(root: Path, name: str) -> None:
    """Make the package serve the model. What only the package's own files have of the old one is kept in `models`.

    Raises:
        PackageError: there is no such model, it is not locked, or it has no task file.
        WeightsError: its lock cannot be read.
        SignatureError: its predict.py has an input that Cog would misread.
    """
    models = {model.name: model for model in known_models(root)}
    if name not in models:
        raise PackageError(f"there is no model {name!r}; known are {', '.join(models)}")
    new = models[name]
    if not new.is_used:
        old = next(model for model in models.values() if model.is_used)
        change_files(root, _kept(old) | _files(new))
    elif new.lock.is_file():  # locked again beside its checkpoint since it is in use
        entry = KnownModel(root, name, is_used=False).entry()
        assert entry.name == name
        change_files(root, {"weights.lock": new.lock.read_text("utf-8")})


def _files(model: KnownModel) -> dict[str, str | None]:
    """What the package's files become, without what `models` has of the model until then."""
    root, entry = model.root, model.entry()
    predict = _saved(model, "predict.py") or predict_source(model.task_file())
    document = json.loads((root / _SCHEMA).read_text("utf-8"))
    write_inputs(document, predict, "Predictor")
    stanza = _saved(model, STANZA) or stanza_of(entry)
    return {
        "cog.yaml": replace_stanza((root / "cog.yaml").read_text("utf-8"), stanza),
        "weights.lock": model.lock.read_text("utf-8"),
        "predict.py": predict,
        _SCHEMA: json.dumps(document, indent=2, ensure_ascii=False) + "\n",
        **{_name(model, file): None for file in ("weights.lock", STANZA, "predict.py")},
    }


def _kept(model: KnownModel) -> dict[str, str | None]:
    """What has to be kept of the model that was in use: its lock, and what could not be made again."""
    root, entry = model.root, model.entry()
    lock = str(model.lock.relative_to(root)) if model.lock.is_file() else _name(model, "weights.lock")
    kept: dict[str, str | None] = {lock: (root / "weights.lock").read_text("utf-8")}
    stanza = _BLOCK.search((root / "cog.yaml").read_text("utf-8"))
    if stanza is not None and stanza[0] != stanza_of(entry):
        kept[_name(model, STANZA)] = stanza[0]
    predict = (root / "predict.py").read_text("utf-8")
    try:
        usual = predict_source(model.task_file())
    except PackageError:
        usual = None  # its checkpoint is not there
    if predict != usual:
        kept[_name(model, "predict.py")] = predict
    return kept


def stanza_of(entry: LockedWeights) -> str:
    """The part `weights:` of cog.yaml from which the entry would be locked."""
    sources: list[dict[str, Any]] = []
    for source in entry.sources:
        patterns = {"include": list(source.include), "exclude": list(source.exclude)}
        uri = source.uri.removeprefix("file://./")
        sources.append({"uri": uri, **{key: value for key, value in patterns.items() if value}})
    weights = {"name": entry.name, "target": entry.target, "source": sources[0] if len(sources) == 1 else sources}
    return str(yaml.safe_dump({"weights": [weights]}, sort_keys=False))


def replace_stanza(cog_yaml: str, stanza: str) -> str:
    """cog.yaml with another part `weights:`; all else stays to the letter.

    Raises:
        PackageError: there is no such part.
    """
    text, count = _BLOCK.subn(lambda _: stanza.rstrip("\n") + "\n", cog_yaml, count=1)
    if not count:
        raise PackageError("cog.yaml has no part `weights:` that begins a line; write it as in Cog's documentation")
    return text


def _saved(model: KnownModel, file: str) -> str | None:
    path = model.folder / file
    return path.read_text("utf-8") if path.is_file() else None


def _name(model: KnownModel, file: str) -> str:
    return str((model.folder / file).relative_to(model.root))
