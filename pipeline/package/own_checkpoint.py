"""Checks a user's checkpoint, copies the files that a package needs from it, and writes task.json beside them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.fetching.wanted import COMPANIONS
from pipeline.package.errors import PackageError
from pipeline.package.task_choice import TaskChoice, task_content
from pipeline.weights.atomic import place_file, write_json
from pipeline.weights.checkpoint_config import read_config_json
from pipeline.weights.console import byte_bar, say
from pipeline.weights.safetensors_io import shard_names
from serving.text import Tokenizer
from serving.text.template_files import read_templates
from serving.text.tokenizer import read_json
from tasks.task import TASK_FILE, create_task, task_name

_INDEX: Final = "model.safetensors.index.json"
_MODEL: Final = "model.safetensors"
_NOT_SERVED: Final = ("adapter_config.json", "chat_template.jinja", TASK_FILE)  # templates are found below
_COMPANIONS: Final = (*(name for name in COMPANIONS if name not in _NOT_SERVED), "LICENSE.txt", "LICENSE.md")
_TEMPLATES: Final = ("*.jinja", "additional_chat_templates/*.jinja")
_CODE_WEIGHTS: Final = ("*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True)
class OwnCheckpoint:
    """A folder in Hugging Face's layout; it is only read.

    Args:
        files: names of the files that a package needs.
        size: bytes of these files together.
    """

    folder: Path
    config: dict[str, Any]
    files: tuple[str, ...]
    size: int

    @property
    def quantization(self) -> str | None:
        """The quantization method that config.json names; None if the weights are not quantized."""
        found = self.config.get("quantization_config")
        return str(found.get("quant_method", "unknown")) if isinstance(found, dict) else None

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the files that a package does not need; task.json is made of the checkpoint's, if it has one."""
        taken = {TASK_FILE, *(name.partition("/")[0] for name in self.files)}
        return tuple(sorted(path.name for path in self.folder.iterdir() if path.name not in taken))


def open_checkpoint(folder: Path) -> OwnCheckpoint:
    """Read and check a checkpoint; tensors are not read.

    Raises:
        PackageError: a required file is missing, or the weights are in a format that is never loaded.
        CheckpointError: config.json or the index of the tensors is missing or damaged.
    """
    if not folder.is_dir():
        raise PackageError(f"{folder}: no such folder; give the folder of a checkpoint in Hugging Face's layout")
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise PackageError(
            f"{folder} is a LoRA adapter; merge it first: scripts/merge_lora BASE {folder} MERGED, then give MERGED"
        )
    config = read_config_json(folder)
    tensors = _tensor_files(folder)
    if not (folder / "tokenizer.json").is_file():
        raise PackageError(
            f"{folder} has no tokenizer.json; write one with transformers: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    names = (name for name in _COMPANIONS if (folder / name).is_file())
    templates = (str(path.relative_to(folder)) for pattern in _TEMPLATES for path in sorted(folder.glob(pattern)))
    files = (*names, *templates, *tensors)
    return OwnCheckpoint(folder, config, files, sum((folder / name).stat().st_size for name in files))


def _tensor_files(folder: Path) -> tuple[str, ...]:
    """The single tensor file, or the index and its shards."""
    if (folder / _INDEX).is_file():
        names = shard_names(folder / _INDEX)
    elif (folder / _MODEL).is_file():
        return (_MODEL,)
    elif any(path for pattern in _CODE_WEIGHTS for path in folder.glob(pattern)):
        raise PackageError(
            f"{folder} has only pickled weights, which can run code when they are loaded; safetensors is required. "
            "Convert with transformers: model.save_pretrained(FOLDER, safe_serialization=True)"
        )
    else:
        raise PackageError(f"{folder} has neither {_MODEL} nor {_INDEX}; give the folder of a whole checkpoint")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise PackageError(f"{folder} lacks {', '.join(missing)}, which {_INDEX} names; fetch the checkpoint again")
    return (_INDEX, *names)


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
    """Put what is served of a checkpoint into the new folder `target`; says what was left out.

    Tensors are hard links where the file system allows it. Small files are always copied, so that editing them in the
    package does not change the checkpoint.
    """
    target.mkdir(parents=True)
    all_linked = True
    with byte_bar(f"Weights, {len(checkpoint.files)} files", checkpoint.size) as progress:
        for name in checkpoint.files:
            (target / name).parent.mkdir(exist_ok=True)
            source = (checkpoint.folder / name).resolve()  # the hub's cache has symbolic links, which a lock refuses
            if name.endswith(".safetensors"):
                all_linked &= place_file(source, target / name)
            else:
                shutil.copyfile(source, target / name)
            progress(source.stat().st_size)
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
