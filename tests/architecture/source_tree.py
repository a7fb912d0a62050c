"""Finds the repository's Python files and their imports by parsing them; no file is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("serving", "tasks", "gateway", "pipeline", "lab", "examples", "scripts", "deploy", "predict.py")


@dataclass(frozen=True)
class Module:
    """A Python file and its import name."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def all_imports(self) -> set[str]:
        """Modules that the file imports, also inside functions and for type checkers only.

        `from a import b` names `a.b` where that is a module of this repository, and `a` otherwise.
        """
        return {name for node in self._import_nodes for name in self._named_by(node)}

    @cached_property
    def imports(self) -> set[str]:
        """The same without those for type checkers only: what is imported when the file runs."""
        skipped = {id(inner) for block in self._typing_blocks() for inner in ast.walk(block)}
        return {name for node in self._import_nodes if id(node) not in skipped for name in self._named_by(node)}

    @cached_property
    def _import_nodes(self) -> list[ast.stmt]:
        """Statements are walked, not the expressions in them, which are most of a tree."""
        found, todo = [], list(self.tree.body)
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.append(node)
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                todo.extend(getattr(node, block, ()))
        return found

    def _typing_blocks(self) -> Iterator[ast.If]:
        if "TYPE_CHECKING" not in self.text:
            return
        for node in ast.walk(self.tree):
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                yield node

    def _named_by(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (self._neighbour(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = self._absolute(node)
            for alias in node.names:
                child = f"{base}.{alias.name}"
                yield child if _file_of(child) is not None else self._neighbour(base)

    def _neighbour(self, name: str) -> str:
        """The full name of a module; scripts import modules in their folder by bare names."""
        beside = f"scripts.{name}"
        return beside if self.name.startswith("scripts.") and _file_of(beside) is not None else name

    def _absolute(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        parts = package[: len(package) - node.level + 1]
        return ".".join([*parts, node.module] if node.module else parts)


@cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Every Python file below these folders (or files), including scripts without a suffix."""
    return tuple(_module(path) for folder in folders for path in _python_files(ROOT / folder))


def _python_files(top: Path) -> Iterator[Path]:
    files = [top] if top.is_file() else sorted(top.rglob("*"))
    for path in files:
        if path.is_file() and "__pycache__" not in path.parts and _is_python(path):
            yield path


def _is_python(path: Path) -> bool:
    if path.suffix:
        return path.suffix == ".py"
    with path.open("rb") as file:
        first = file.readline()
    return first.startswith(b"#!") and b"python" in first


@cache
def _module(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, path.read_text(encoding="utf-8"))


@cache
def _file_of(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    candidates = (base.with_name(base.name + ".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def reachable(start: str) -> set[str]:
    """All modules that are loaded by importing `start`, directly or indirectly."""
    by_name = {module.name: module for module in modules(*PRODUCT)}
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        if "." in name:
            todo.append(name.rpartition(".")[0])
        if name in by_name:
            todo.extend(by_name[name].imports)
    return found


def within(name: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of these or inside one of these."""
    return any(name == package or name.startswith(package + ".") for package in packages)
