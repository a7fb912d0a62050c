"""Which files of an adapter's folder are read, and the digest of all of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from serving.weights.draft_weights import DRAFT_MODEL
from serving.weights.lock import locked_file, set_digest

T = TypeVar("T")
CONFIG: Final = "adapter_config.json"
TENSORS: Final = "adapter_model.safetensors"
GOLDEN: Final = "golden.jsonl"  # what it must answer, see `serving.adapters.golden`
# What an adapter may have beside its weights: what changes prompts or answers, says what is right, or drafts.
COMPANIONS: Final = (
    "chat_template.jinja",
    "task.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    GOLDEN,
    DRAFT_MODEL,
)
_MORE: Final = "additional_chat_templates"
_MORE_TEMPLATES: Final = re.compile(_MORE + r"/[\w.-]+\.jinja")


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """An adapter in memory, in the form that an engine computes with, and the digest of its files."""

    lora: T
    digest: str


def files_that_count(names: Iterable[str]) -> list[str]:
    """Those of the names, relative to an adapter's folder, that are read, sorted."""
    known = {CONFIG, TENSORS, *COMPANIONS}
    return sorted(name for name in names if name in known or _MORE_TEMPLATES.fullmatch(name))


def adapter_digest(folder: Path, read: Mapping[str, bytes] | None = None) -> str:
    """The digest of a folder's files that count, of which `read` has contents that have been read already, by name.

    Raises:
        OSError: a file cannot be read.
    """
    paths = (*folder.iterdir(), *(folder / _MORE).glob("*.jinja"))
    names = (path.relative_to(folder).as_posix() for path in paths if path.is_file())
    files = []
    for name in files_that_count(names):
        if read is not None and name in read:
            size, digest = len(read[name]), hashlib.sha256(read[name]).hexdigest()
        else:
            with (folder / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
        files.append(locked_file(name, size, digest))
    return set_digest(files)
