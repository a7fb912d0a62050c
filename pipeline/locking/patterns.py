"""The files that `include` and `exclude` of cog.yaml take, as Cog 0.23.1 reads their patterns.

Cog reads them like lines of a .gitignore file, with the library go-gitignore. Characters that this library does not
take literally, `?` among them, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipeline.weights.errors import CheckpointError

_PLAIN = re.compile(r"/?[\w.* -]+(?:/[\w.* -]+)*/?")
_ANCHORED = re.compile(r"/|.*[^/]/.*\*\.")  # `onnx/*.bin` means the folder onnx at the top


def select(names: Iterable[str], include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Names that match a pattern of `include`, or all if it is empty, and none of `exclude`; sorted.

    `*` stays inside one folder. A pattern may begin in any folder, unless it has a slash at its start or before `*.`;
    one that matches a folder takes all files below it.

    Raises:
        CheckpointError: a pattern has other special characters.
    """
    included, excluded = [_expression(pattern) for pattern in include], [_expression(pattern) for pattern in exclude]
    return [
        name
        for name in sorted(names)
        if (not included or any(pattern.fullmatch(name) for pattern in included))
        and not any(pattern.fullmatch(name) for pattern in excluded)
    ]


def _expression(pattern: str) -> re.Pattern[str]:
    pattern = pattern.strip()
    if not _PLAIN.fullmatch(pattern) or "**" in pattern:
        raise CheckpointError(f"the pattern {pattern!r} has more than names, '*' and '/'; put '*' for other characters")
    start = "" if _ANCHORED.match(pattern) else "(?:.*/)?"
    name = re.escape(pattern.removeprefix("/")).replace(r"\*", "[^/]*")
    return re.compile(start + name + (".*" if pattern.endswith("/") else "(?:/.*)?"))
