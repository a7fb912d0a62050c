"""Makes a package from a user's checkpoint, in a temporary folder that is renamed when it is complete."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml

from pipeline.locking.make_lock import make_lock
from pipeline.package.errors import PackageError
from pipeline.package.example_inputs import curl_command, example_of, predict_command
from pipeline.package.own_checkpoint import OwnCheckpoint, check_task, open_checkpoint, place_files
from pipeline.package.package_wheel import WHEELS, write_wheel
from pipeline.package.signature import write_schema
from pipeline.package.task_choice import TaskChoice, task_content
from pipeline.paths import CODE, ROOT
from pipeline.weights.atomic import write_json, write_text
from pipeline.weights.console import say
from serving.engine import unsupported_reason
from serving.errors import ServingError
from tasks.errors import TaskError
from tasks.task import TASK_FILE, TASKS, task_module

_TEMPLATES: Final = Path(__file__).parent / "templates"
_BASE: Final = "from serving.predictor import"
A_PACKAGE: Final = ("cog.yaml", "predict.py", "weights.lock")  # files that every package has
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
_NAME: Final = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")  # Cog's rule for weights


def _write_files(folder: Path, name: str, task_file: Mapping[str, Any], engines: str, source: str) -> None:
    """Write the files of a package into a folder that has none of them.

    Args:
        name: the name of the weights and the model.
        task_file: the content of the package's task.json.
        engines: a sentence that says which engines can run the checkpoint.
        source: the name of the checkpoint's folder.

    Raises:
        SignatureError: the task's predict.py has an input that Cog would misread.
    """
    write_code(folder)
    predict = predict_source(task_file).replace("scripts/", "./package.py ")
    write_text(folder / "predict.py", predict.replace(_BASE, f"{CODE_IMPORT}\n\n{_BASE}"))
    (folder / _SCHEMA).parent.mkdir()
    shutil.copyfile(ROOT / _SCHEMA, folder / _SCHEMA)
    write_schema(folder)
    cog_yaml, inputs = (ROOT / "cog.yaml").read_text("utf-8"), example_of(task_file)
    (ours,) = yaml.safe_load(cog_yaml)["weights"]
    write_text(folder / "cog.yaml", cog_yaml.replace(str(ours["name"]), name))
    readme = Template((_TEMPLATES / "README.md").read_text("utf-8")).substitute(
        name=name,
        task=task_file["task"],
        engines=engines,
        source=source,
        predict=predict_command(inputs),
        curl=curl_command("http://127.0.0.1:5000", inputs, indent=""),
    )
    write_text(folder / "README.md", readme)


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


def new_package(
    folder: Path, weights: Path, choice: TaskChoice, *, name: str | None = None, replace: bool = False
) -> str:
    """Make the package. Progress goes to stderr. After an error nothing has changed.

    Args:
        folder: where to make it; must be missing or empty, unless `replace` is true.
        weights: the user's checkpoint, which is not changed.
        name: the name of weights and model, following Cog's rule for names; None derives it from the folder's name.
        replace: whether an existing package in the folder may be replaced.

    Returns:
        Text for the user: what to do next.

    Raises:
        PackageError: the folder is not empty, the name is not allowed, or the checkpoint is incomplete.
        TaskError: this checkpoint or these options do not suit the task.
        ServingError: the checkpoint has a file that is never loaded.
    """
    name = name or re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    check_name(name)
    _check_folder(folder, replace)
    checkpoint = open_checkpoint(weights)
    task_file = task_content(checkpoint.folder, name, choice)
    with _folder_beside(folder) as staging:
        placed = staging / "weights" / name
        place_files(checkpoint, placed)
        write_json(placed / TASK_FILE, task_file)
        _check_task(placed, choice, checkpoint.folder)
        engines = _engines(checkpoint, placed)
        say(engines)
        _write_files(staging, name, task_file, engines, weights.resolve().name)
        _copy_task(str(task_file["task"]), staging)
        say("Locking the weights")
        lock = make_lock(staging / "cog.yaml", None, datetime.now(UTC))
        write_text(staging / "weights.lock", lock.text())
        _put(staging, folder)
    return Template(_NEXT).substitute(folder=folder, predict=predict_command(example_of(task_file)))


def check_name(name: str) -> None:
    """Check that weights may have this name.

    Raises:
        PackageError: Cog takes no such name.
    """
    if not _NAME.fullmatch(name):
        raise PackageError(
            f"Cog does not allow the name {name!r} for weights. Use lowercase letters and digits, with single "
            "'.', '_' or '-' between them; give another one with --name"
        )


def _check_task(placed: Path, choice: TaskChoice, checkpoint: Path) -> None:
    """Check the task of a package; an error names the file that the user gave, not ours in a temporary folder.

    Raises:
        PackageError: the task does not suit the checkpoint, or its file is wrong.
    """
    try:
        check_task(placed)
    except (TaskError, ServingError) as error:
        text, ours = str(error), str(placed / TASK_FILE)
        if choice.schema is not None:
            text = text.replace(f"{ours}: schema", str(choice.schema))
        theirs = choice.task_file or (own if (own := checkpoint / TASK_FILE).is_file() else "the task")
        text = text.replace(ours, str(theirs)).replace(f"{placed}{os.sep}", "")
        raise PackageError(text) from error


def _copy_task(task: str, folder: Path) -> None:
    """Copy the user's own task, which predict.py has to find beside it; an installed one goes into the requirements."""
    if task in TASKS:
        return
    task_module(task)  # imports it
    name = task.partition(".")[0]
    theirs = Path(next(iter(sys.modules[name].__path__)))
    if "site-packages" in theirs.parts:
        say(f"The task is in the installed package {name}: add it to requirements/image.txt of the new package")
        return
    shutil.copytree(theirs, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def _check_folder(folder: Path, replace: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise PackageError(f"{folder} is a file; give a folder that does not exist yet")
    if not any(folder.iterdir()):
        return
    if not replace:
        raise PackageError(f"{folder} is not empty; give another folder, or --force to replace the package in it")
    if not all((folder / name).is_file() for name in A_PACKAGE):
        raise PackageError(
            f"{folder} is not a package ({', '.join(A_PACKAGE)}), so --force does not replace it; empty it yourself"
        )
    if ROOT.is_relative_to(folder.resolve()):
        raise PackageError(f"{folder} contains the code that is running; give another folder")


def _engines(checkpoint: OwnCheckpoint, weights: Path) -> str:
    """A sentence for the user that says which engines can run this checkpoint."""
    reason = unsupported_reason("paged", weights)
    if reason is not None:
        return f"Runs on a GPU only, with vLLM: {reason}."
    how = "Runs without a GPU on the package's own engine, and with vLLM where there is a GPU."
    if checkpoint.quantization is None:
        return f"{how} The weights are not quantized: scripts/quantize_awq makes them a quarter of the size."
    return how


@contextmanager
def _folder_beside(goal: Path) -> Iterator[Path]:
    """A temporary folder on the goal's file system; it is removed at the end if it was not renamed."""
    goal = goal.resolve()
    goal.parent.mkdir(parents=True, exist_ok=True)
    staging = goal.with_name(f".{goal.name}.{os.getpid()}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _put(staging: Path, goal: Path) -> None:
    """Rename the new package into place; files that the user added to an older one (.git, .venv, notes) are kept."""
    goal = goal.resolve()
    old = goal.with_name(f".{goal.name}.{os.getpid()}.old")
    if goal.exists():
        goal.rename(old)
    try:
        staging.rename(goal)
    except OSError:
        if old.exists():
            old.rename(goal)
        raise
    if old.exists():
        for path in old.iterdir():
            if not (goal / path.name).exists() and not path.match(WHEELS):
                path.rename(goal / path.name)
        shutil.rmtree(old)
