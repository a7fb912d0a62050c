"""Selects the files of a repository or folder that are needed, and checks their names and the free disk space."""

from __future__ import annotations

import errno
import resource
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pipeline.weights.errors import CheckpointError

COMPANIONS = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    # what this package puts beside a checkpoint that it pushes, and what must stay with it
    "task.json",
    "draft.model",
    "draft.ngrams",
    "LICENSE",
    "NOTICE",
)
_NEEDED = (*COMPANIONS, "additional_chat_templates/*.jinja")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_ADAPTER_WEIGHTS = ("adapter_model.safetensors",)  # the optimizer's state may lie beside them
_PICKLED = ("pytorch_model*.bin", "pytorch_model.bin.index.json", "adapter_model.bin")
_MARGIN = 256 << 20  # bytes that must stay free
_MORE_THAN_STATED = 64 << 20  # bytes for what a client writes beside the file itself, such as parts and logs


def needed_files(names: Iterable[str]) -> list[str]:
    """The files of a checkpoint or adapter that merging, quantizing and serving read, sorted by name.

    Pickled weights are included only if there are no safetensors files: merging reads them with torch's weights-only
    loader, serving never does.

    Raises:
        CheckpointError: the files are not a checkpoint or adapter, or a name would lead outside the folder.
    """
    names = check_names(names)
    is_adapter = "adapter_config.json" in names and "config.json" not in names
    wanted = (*_NEEDED, *(_ADAPTER_WEIGHTS if is_adapter else _WEIGHTS))
    found = [name for name in names if any(_matches(name, pattern) for pattern in wanted)]
    if not any(name.endswith(".safetensors") for name in found):
        found += [name for name in names if any(_matches(name, pattern) for pattern in _PICKLED)]
    if not any(name.endswith((".safetensors", ".bin")) for name in found):
        raise CheckpointError("the source has no weights (*.safetensors, or pytorch_model*.bin)")
    if not {"config.json", "adapter_config.json"} & set(found):
        raise CheckpointError("the source has neither config.json nor adapter_config.json; it is no checkpoint")
    return found


def check_names(names: Iterable[str]) -> list[str]:
    """The names, sorted.

    Raises:
        CheckpointError: a name would lie outside the folder.
    """
    names = sorted(names)
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
            raise CheckpointError(f"the source names a file {name!r} outside its folder; do not use it")
    return names


def _matches(name: str, pattern: str) -> bool:
    """Whether a name matches; `*` matches no slash, since weights in subfolders are other formats of the same model."""
    return name.count("/") == pattern.count("/") and fnmatch(name, pattern)


def check_space(folder: Path, sizes: Mapping[str, int]) -> None:
    """Check, before a download, that the missing files fit on the disk; `sizes` are bytes by file name.

    Raises:
        CheckpointError: they do not fit.
    """
    there = {name: folder / name for name in sizes if (folder / name).is_file()}
    missing = sum(size for name, size in sizes.items() if name not in there or there[name].stat().st_size != size)
    existing = next(parent for parent in (folder, *folder.resolve().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if missing and missing + _MARGIN > free:
        raise CheckpointError(
            f"{missing:,} bytes are to be fetched into {folder}, {_MARGIN:,} should stay free, and {free:,} are free "
            "there; make room or choose another folder"
        )


@contextmanager
def size_limit(largest: int) -> Iterator[None]:
    """Let this process write no file beyond `largest` bytes and 64 MiB, whatever a server sends.

    Raises:
        CheckpointError: a file grew beyond that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = largest + _MORE_THAN_STATED
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit if soft == resource.RLIM_INFINITY else min(soft, limit), hard))
    try:
        yield
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise CheckpointError(
            f"the server sent more than {limit:,} bytes for a file of {largest:,}; do not use it"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
