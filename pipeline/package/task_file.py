"""Write task.json beside a checkpoint, and check that the task works with it."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.package.errors import PackageError
from pipeline.package.own_checkpoint import OwnCheckpoint, place
from pipeline.package.task_choice import TaskChoice, task_content
from pipeline.weights.atomic import write_json
from pipeline.weights.console import byte_bar, say
from serving.text import Tokenizer
from serving.text.template_files import read_templates
from serving.text.tokenizer import read_json
from tasks.task import TASK_FILE, create_task, task_name


def write_task(folder: Path, choice: TaskChoice, *, name: str) -> None:
    """Write task.json beside the checkpoint in `folder`; a task.json that is there is replaced if the new one works.

    Raises:
        PackageError: no task was chosen, or the options are another task's.
        TaskError: the task cannot be done with this checkpoint or these options.
        ServingError: the checkpoint holds what is never loaded.
    """
    content = task_content(folder, name, choice)
    path = folder / TASK_FILE
    earlier = path.read_bytes() if path.is_file() else None
    write_json(path, content)
    try:
        check_task(folder)
    except BaseException:
        if earlier is None:
            path.unlink()
        else:
            path.write_bytes(earlier)
        raise


def copy_with_task(checkpoint: OwnCheckpoint, target: Path, choice: TaskChoice, *, name: str) -> None:
    """A new folder with what is served of the checkpoint and a task.json; it is complete or it is not there.

    Raises:
        PackageError: the folder is there already; and all that `write_task` raises.
    """
    if target.exists():
        raise PackageError(f"{target} exists already; give another folder, or remove it")
    target = target.resolve()
    staging = target.with_name(f".{target.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        place_files(checkpoint, staging)
        if choice.task_file is None and (own := checkpoint.folder / TASK_FILE).is_file():
            shutil.copyfile(own, staging / TASK_FILE)
        write_task(staging, choice, name=name)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def place_files(checkpoint: OwnCheckpoint, target: Path) -> None:
    """Put what is served of a checkpoint into the new folder `target`; says what was left out."""
    with byte_bar(f"Weights, {len(checkpoint.files)} files", checkpoint.size) as progress:
        all_linked = place(checkpoint, target, progress)
    say("Tensor files are hard links and take no more space" if all_linked else "Tensor files are copies")
    if checkpoint.left_out:
        say(f"Files of the checkpoint that were left out: {', '.join(checkpoint.left_out)}")


def check_task(weights: Path) -> None:
    """Set the task up as the server will, so that errors appear now.

    Raises:
        PackageError: a chat task has no chat template.
        TaskError: this checkpoint or these options do not suit the task.
    """
    create_task(weights, Tokenizer.from_dir(weights))
    if (
        task_name(weights) == "chat"
        and not read_templates(weights)
        and "chat_template" not in read_json(weights / TASK_FILE)
    ):
        raise PackageError(
            "the checkpoint has no chat template, neither chat_template.jinja nor one in tokenizer_config.json. Add "
            "the one that it was trained with, or give a --task-file with "
            '{"task": "chat", "chat_template": false} so that the model continues plain text'
        )
