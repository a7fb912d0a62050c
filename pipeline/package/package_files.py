"""Writes a new package's files, except weights and lock: the code's wheel, cog.yaml, predict.py, its schema, README."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

import yaml

from pipeline.package.example_inputs import curl_command, example_of, predict_command
from pipeline.package.package_wheel import WHEELS, write_wheel
from pipeline.package.predict_source import package_source
from pipeline.package.write_schema import write_schema
from pipeline.paths import CODE, ROOT
from pipeline.weights.atomic import write_text

_TEMPLATES: Final = Path(__file__).parent / "templates"
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
    write_code(folder)
    write_text(folder / "predict.py", package_source(text.task, text.inputs))
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


def next_steps(folder: Path, text: PackageText) -> str:
    """Text for the user: how to run and push the new package."""
    return Template(_NEXT).substitute(folder=folder, predict=predict_command(example_of(text.task, text.inputs)))


def _cog_yaml(name: str) -> str:
    """This repository's cog.yaml with the new package's weights."""
    text = (ROOT / "cog.yaml").read_text("utf-8")
    (ours,) = yaml.safe_load(text)["weights"]
    return text.replace(str(ours["name"]), name)


def _readme(text: PackageText) -> str:
    inputs = example_of(text.task, text.inputs)
    return Template((_TEMPLATES / "README.md").read_text("utf-8")).substitute(
        name=text.name,
        task=text.task,
        engines=text.engines,
        source=text.source,
        predict=predict_command(inputs),
        curl=curl_command("http://127.0.0.1:5000", inputs, indent=""),
    )
