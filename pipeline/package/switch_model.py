"""Switch the package to another locked model: cog.yaml, weights.lock, predict.py and its schema in one step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.environment.journal import change_files
from pipeline.package.errors import PackageError
from pipeline.package.known_models import STANZA, KnownModel, known_models
from pipeline.package.package_files import predict_source
from pipeline.package.signature import write_inputs
from serving.weights import LockedWeights

_SCHEMA: Final = ".cog/openapi_schema.json"
_BLOCK: Final = re.compile(r"^weights:.*\n(?:\n*[ \-].*(?:\n|\Z))*", re.MULTILINE)


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
