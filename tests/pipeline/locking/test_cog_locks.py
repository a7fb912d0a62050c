"""Agreement with Cog itself: the lock that Cog publishes as an example, and how Cog reads patterns.

cog_example.lock is examples/managed-weights/weights.lock of cog 0.23.1 on PyPI, to the letter.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.locking.source_files import select
from pipeline.weights.errors import CheckpointError
from serving.weights import WeightsLock, set_digest

COGS = Path(__file__).with_name("cog_example.lock")
ROOT = Path(__file__).resolve().parents[3]


def test_our_set_digests_are_those_that_cog_publishes() -> None:
    stated = {entry["name"]: entry["setDigest"] for entry in json.loads(COGS.read_text())["weights"]}
    lock = WeightsLock.load(COGS)
    assert {entry.name: set_digest(reversed(entry.files)) for entry in lock.weights} == stated
    assert len(stated) == 2


def test_a_lock_of_cog_is_written_again_to_the_letter() -> None:
    assert WeightsLock.load(COGS).text() == COGS.read_text()


def test_the_committed_comparison_is_with_this_lock() -> None:
    """docs/results/cog-digests.json: the real files of one of its models, locked by scripts/lock_weights."""
    result = json.loads((ROOT / "docs" / "results" / "cog-digests.json").read_text())
    entry = WeightsLock.load(COGS).entry_for("minilm")
    assert (result["set_digest"], result["size"], result["files"]) == (entry.set_digest, entry.size, len(entry.files))


FILES = ["config.json", "model.safetensors", "old.bin", "onnx/a.onnx", "onnx/deep/b.onnx", "sub/config.json"]


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("*.json", ["config.json", "sub/config.json"]),
        ("config.json", ["config.json", "sub/config.json"]),
        ("/config.json", ["config.json"]),
        ("/*.json", ["config.json"]),
        ("*", FILES),
        ("onnx/", ["onnx/a.onnx", "onnx/deep/b.onnx"]),
        ("onnx", ["onnx/a.onnx", "onnx/deep/b.onnx"]),
        ("deep/", ["onnx/deep/b.onnx"]),
        ("deep/b.onnx", ["onnx/deep/b.onnx"]),
        ("deep/*.onnx", []),  # a slash before `*.` anchors a pattern
        ("onnx/*.onnx", ["onnx/a.onnx"]),
        ("onnx/*", ["onnx/a.onnx", "onnx/deep/b.onnx"]),
        (" *.bin ", ["old.bin"]),
        ("*.BIN", []),
        ("model*.safetensors", ["model.safetensors"]),
    ],
)
def test_patterns_take_what_they_take_in_cog(pattern: str, taken: list[str]) -> None:
    """As Cog's own tests of filters and go-gitignore's rules have it."""
    assert select(FILES, [pattern], []) == taken
    assert select(FILES, [], [pattern]) == [name for name in FILES if name not in taken]


@pytest.mark.parametrize(
    "pattern", ["a?.bin", "**/a.bin", "!a.bin", "#a", "[ab].bin", "a+b.bin", "", "a\\b", "(a", "/"]
)
def test_characters_that_cog_reads_in_its_own_way_are_refused(pattern: str) -> None:
    with pytest.raises(CheckpointError, match="more than names"):
        select(FILES, [pattern], [])
