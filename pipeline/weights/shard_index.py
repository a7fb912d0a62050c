"""Reads the index of a checkpoint that consists of several files, such as model.safetensors.index.json."""

from __future__ import annotations

import json
from pathlib import Path

from .errors import CheckpointError


def shard_names(index: Path) -> list[str]:
    """The files that an index names, sorted. Each is in the index's folder and has the index's kind.

    Raises:
        CheckpointError: the index is damaged, or names anything else.
    """
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged ({error!r}); fetch it again") from error
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    for name in names:
        if not _is_plain(name, suffix):
            raise CheckpointError(
                f"{index} names {name!r}, which is not a {suffix} file in its folder; it is damaged or malicious"
            )
    return sorted(names)


def _is_plain(name: object, suffix: str) -> bool:
    """Whether it is a file name that leads nowhere else, on any system and in a URL."""
    return (
        isinstance(name, str)
        and name.endswith(suffix)
        and not name.startswith(".")
        and name.isprintable()
        and not set(name) & set("/\\:?#%")
    )
