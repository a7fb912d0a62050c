"""Writes a new package's files, except weights and lock: code, cog.yaml, predict.py, its schema, README."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

import yaml

from pipeline.package.example_inputs import curl_command, example_of, predict_command
from pipeline.package.package_code import code_files
from pipeline.package.predict_source import predict_source
from pipeline.package.write_schema import write_schema
from pipeline.paths import ROOT
from pipeline.weights.atomic import write_text

_README: Final = Path(__file__).parent / "templates" / "README.md"
_SCHEMA: Final = Path(".cog") / "openapi_schema.json"
_CPU: Final = Path("requirements") / "cpu.txt"
_ONLY_TO_BUILD: Final = ("gguf", "pip")  # pins of cpu.txt that are only needed to build the default weights
_NEXT: Final = """
Made $folder. Next:

  cd $folder
  $predict
  scripts/serve

then set `model:` in cog.yaml to your own, and push from a machine with Docker and Cog 0.23:

  scripts/push --replicate r8.im/OWNER/NAME

README.md there says what to change where."""


@dataclass(frozen=True, slots=True)
class PackageText:
    """The values that are filled into the files.

    Args:
        name: of the weights and the model.
        task: name of the package's task.
        inputs: names of a schema task's text inputs; empty for other tasks.
        engines: a sentence that says which engines can run the checkpoint.
        source: the name of the checkpoint's folder.
    """

    name: str
    task: str
    inputs: tuple[str, ...]
    engines: str
    source: str


def write_files(folder: Path, text: PackageText) -> None:
    """Write the files into a folder that has none of them.

    Raises:
        SignatureError: the task's predict.py has an input that Cog would misread.
    """
    for path in code_files(ROOT, text.task):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)  # also copies the mode: scripts are executable
    write_text(folder / _CPU, _cpu_requirements())
    write_text(folder / "predict.py", predict_source(text.task, text.inputs))
    (folder / _SCHEMA).parent.mkdir()
    shutil.copyfile(ROOT / _SCHEMA, folder / _SCHEMA)
    write_schema(folder)
    write_text(folder / "cog.yaml", _cog_yaml(text.name))
    write_text(folder / "README.md", _readme(text))


def next_steps(folder: Path, text: PackageText) -> str:
    """Text for the user: how to run and push the new package."""
    return Template(_NEXT).substitute(folder=folder, predict=predict_command(example_of(text.task, text.inputs)))


def _cpu_requirements() -> str:
    """This repository's cpu.txt without the pins that only build the default weights."""
    lines = (ROOT / _CPU).read_text("utf-8").splitlines(keepends=True)
    _, *pins = [line for line in lines if line.partition("==")[0] not in _ONLY_TO_BUILD]
    return "".join(["# What the commands in scripts/ need on a machine without a GPU.\n", *pins])


def _cog_yaml(name: str) -> str:
    """This repository's cog.yaml with the new package's weights."""
    text = (ROOT / "cog.yaml").read_text("utf-8")
    (ours,) = yaml.safe_load(text)["weights"]
    return text.replace(str(ours["name"]), name)


def _readme(text: PackageText) -> str:
    inputs = example_of(text.task, text.inputs)
    return Template(_README.read_text("utf-8")).substitute(
        name=text.name,
        task=text.task,
        engines=text.engines,
        source=text.source,
        predict=predict_command(inputs),
        curl=curl_command("http://127.0.0.1:5000", inputs, indent=""),
    )
