"""Finds the code files that a package needs to run by itself: its commands and everything that they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tasks.task import TASKS

COMMANDS: Final = ("predict", "serve", "lock_weights", "write_schema", "push", "batch", "keys", "precompute")
_WHOLE: Final = ("serving", "gateway")
_AS_THEY_ARE: Final = (".dockerignore", ".gitignore", "LICENSE")
# of the environments that COMMANDS make, and of the image
_REQUIREMENTS: Final = ("cpu", "image", "uv", "vllm", "vllm-suffix")
_LEFT_OUT: Final = ("__pycache__",)


def code_files(root: Path, task: str) -> list[Path]:
    """Sorted paths, relative to `root`, without `predict.py`, `cog.yaml` and the weights.

    Args:
        root: of this repository.
        task: name of the package's task; the code of other tasks is left out.
    """
    found = {root / name for name in _AS_THEY_ARE}
    found |= {path for name in _REQUIREMENTS for path in (root / "requirements").glob(f"{name}.*")}
    found |= {path for name in _WHOLE for path in _files(root / name)}
    others = [root / "tasks" / name for name in TASKS if name != task]
    found |= {path for path in _files(root / "tasks") if not any(path.is_relative_to(other) for other in others)}
    found |= _with_imports(root, [root / "scripts" / name for name in COMMANDS])
    return sorted(path.relative_to(root) for path in found)


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not set(_LEFT_OUT) & set(path.parts) and path.suffix not in (".pyc", ".partial"):
            yield path


def _with_imports(root: Path, scripts: list[Path]) -> set[Path]:
    """These files and all files of the repository that they import, directly or indirectly."""
    found: set[Path] = set()
    todo = list(scripts)
    while todo:
        path = todo.pop()
        if path in found or path == root / "predict.py":
            continue
        found.add(path)
        for name in _imported(path):
            todo += _files_of(root, name)
    return found


def _imported(path: Path) -> Iterator[str]:
    """Names of all modules that a file imports, also inside functions; `from a import b` yields a and a.b."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*_package(path, node.level), *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _package(path: Path, level: int) -> list[str]:
    """The package, as a list of names, that the dots of a relative import mean."""
    folders = [parent.name for parent in path.parents if (parent / "__init__.py").exists()]
    return list(reversed(folders[level - 1 :])) if level else []


def _files_of(root: Path, module: str) -> Iterator[Path]:
    """The module's file and the `__init__.py` of its packages; scripts import files beside them by bare names."""
    parts = module.split(".")
    for top in (root, root / "scripts"):
        base = top.joinpath(*parts)
        if base.with_suffix(".py").is_file() or (base / "__init__.py").is_file():
            for depth in range(1, len(parts) + 1):
                package = top.joinpath(*parts[:depth])
                yield from (f for f in (package / "__init__.py", package.with_suffix(".py")) if f.is_file())
