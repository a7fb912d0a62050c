"""Writes a new package's files, except weights and lock: the code's wheel, cog.yaml, predict.py, its schema, README."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml

from pipeline.package.example_inputs import curl_command, example_of, predict_command
from pipeline.package.package_wheel import WHEELS, write_wheel
from pipeline.package.write_schema import write_schema
from pipeline.paths import CODE, ROOT
from pipeline.weights.atomic import write_text
from tasks.task import task_module

_TEMPLATES: Final = Path(__file__).parent / "templates"
_BASE: Final = "from serving.predictor import"
CODE_IMPORT: Final = "import package  # the way to the code, see package.py"
_SCHEMA: Final = Path(".cog") / "openapi_schema.json"
IMAGE: Final = Path("requirements") / "image.txt"
PACKAGE: Final = "package.py"
_NOT_IN_IMAGE: Final = """\
.code
.door
.gateway
.git
.venv*
before-upgrade
build
weights
**/__pycache__
**/*.partial
"""  # weights are mounted
_NOT_IN_GIT: Final = """\
.code/
.door/
.gateway/
.venv*/
/before-upgrade/
/build/
/weights/
__pycache__/
*.partial
.cog/*
!.cog/openapi_schema.json
"""
_NEXT: Final = """
Made $folder. Next:

  cd $folder
  $predict
  ./package.py serve

then set `model:` in cog.yaml to your own, and push from a machine with Docker and Cog 0.23:

  ./package.py push --replicate r8.im/OWNER/NAME

README.md there says what to change where."""


@dataclass(frozen=True, slots=True)
class PackageText:
    """The values that are filled into the files.

    Args:
        name: of the weights and the model.
        task_file: the content of the package's task.json.
        engines: a sentence that says which engines can run the checkpoint.
        source: the name of the checkpoint's folder.
    """

    name: str
    task_file: Mapping[str, Any]
    engines: str
    source: str


def write_files(folder: Path, text: PackageText) -> None:
    """Write the files into a folder that has none of them.

    Raises:
        SignatureError: the task's predict.py has an input that Cog would misread.
    """
    write_code(folder)
    write_text(folder / "predict.py", package_source(text.task_file))
    (folder / _SCHEMA).parent.mkdir()
    shutil.copyfile(ROOT / _SCHEMA, folder / _SCHEMA)
    write_schema(folder)
    write_text(folder / "cog.yaml", _cog_yaml(text.name))
    write_text(folder / "README.md", _readme(text))


def write_code(folder: Path) -> Path:
    """Write what a package has of this project: the wheel, package.py, the image's requirements, two lists of files.

    Returns:
        The wheel's path.
    """
    wheel = write_wheel(folder)
    text = (_TEMPLATES / PACKAGE).read_text("utf-8")
    write_text(folder / PACKAGE, Template(text).substitute(wheel=WHEELS))
    (folder / PACKAGE).chmod(0o755)
    (folder / IMAGE).parent.mkdir(exist_ok=True)
    shutil.copyfile(CODE / IMAGE, folder / IMAGE)
    write_text(folder / ".dockerignore", _NOT_IN_IMAGE)
    write_text(folder / ".gitignore", _NOT_IN_GIT)
    return wheel


def predict_source(task_file: Mapping[str, Any]) -> str:
    """Python source of predict.py for a task file's content."""
    return task_module(task_file["task"]).predict_source(task_file)


def package_source(task_file: Mapping[str, Any]) -> str:
    """The same for a package, which has the code as a wheel."""
    source = predict_source(task_file).replace("scripts/", "./package.py ")
    return source.replace(_BASE, f"{CODE_IMPORT}\n\n{_BASE}")


def next_steps(folder: Path, text: PackageText) -> str:
    """Text for the user: how to run and push the new package."""
    return Template(_NEXT).substitute(folder=folder, predict=predict_command(example_of(text.task_file)))


def _cog_yaml(name: str) -> str:
    """This repository's cog.yaml with the new package's weights."""
    text = (ROOT / "cog.yaml").read_text("utf-8")
    (ours,) = yaml.safe_load(text)["weights"]
    return text.replace(str(ours["name"]), name)


def _readme(text: PackageText) -> str:
    inputs = example_of(text.task_file)
    return Template((_TEMPLATES / "README.md").read_text("utf-8")).substitute(
        name=text.name,
        task=text.task_file["task"],
        engines=text.engines,
        source=text.source,
        predict=predict_command(inputs),
        curl=curl_command("http://127.0.0.1:5000", inputs, indent=""),
    )
