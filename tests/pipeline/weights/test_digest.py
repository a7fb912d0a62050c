"""Digests equal those of other programs, and files are read in pieces."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from pipeline.weights.digest import git_digest


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
        (b"hello\n", "ce013625030ba8dba906f756967f9e9ca394464a"),
    ],
)
def test_the_digest_is_that_of_git_hash_object(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "file").write_bytes(content)
    assert git_digest(tmp_path / "file") == expected


def test_a_large_file_is_not_read_into_memory(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        git_digest(tmp_path / "file")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
