"""Every path of this repository that the docs name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.architecture.source_tree import ROOT

DOCS = [
    path for path in (ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md"))) if path.is_file()
]
# Made by commands, so they may be absent in a fresh clone.
MADE = ("weights/", "build/", ".venv")
# Paths in the docs that belong to other projects.
NOT_OURS = {"run.py"}
ENDINGS = (
    ".py",
    ".md",
    ".yaml",
    ".toml",
    ".lock",
    ".txt",
    ".json",
    ".jsonl",
    ".png",
    ".html",
    ".cpp",
    ".csv",
)


def named_paths(text: str) -> Iterator[str]:
    """Words that look like paths of this repository: in backticks, or at the start of a line of a code block."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for words in (*inline, *(line for block in blocks for line in block.splitlines())):
        first = re.match(r"\s*(?:\$ )?(?:\./)?([\w.-]+(?:/[\w.-]+)*/?)(?:::?[\w.]+)?(?=\s|$)", words)
        if first is not None and _is_of_this_repository(first[1]):
            yield first[1]


def _is_of_this_repository(path: str) -> bool:
    """A path that begins at the root, or the bare name of a Python file or a page."""
    if path.startswith(MADE) or path in NOT_OURS:
        return False
    if "/" in path:
        return (ROOT / path.split("/")[0]).exists() or path.endswith(ENDINGS)
    return path.endswith((".py", ".md"))


def exists(path: str) -> bool:
    if "/" in path:
        return (ROOT / path).exists()
    folders = ("serving", "tasks", "gateway", "pipeline", "examples", "scripts", "tests", "docs")
    return (ROOT / path).exists() or any(any((ROOT / folder).rglob(path)) for folder in folders)


def test_paths_in_the_docs_exist() -> None:
    named = {page.name: set(named_paths(page.read_text(encoding="utf-8"))) for page in DOCS}
    missing = {page: {path for path in paths if not exists(path)} for page, paths in named.items()}
    assert {page: paths for page, paths in missing.items() if paths} == {}


def test_links_between_pages_have_targets() -> None:
    missing = []
    for page in DOCS:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{page.name}: {target}")
    assert missing == []
