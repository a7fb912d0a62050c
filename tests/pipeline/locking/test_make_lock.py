"""weights.lock is the text that Cog writes, with nothing in it that was not computed."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.locking.make_lock import make_lock
from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import write_safetensors
from serving.weights import WeightsLock
from tests.pipeline.weights.checkpoint_fixtures import Arrays

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 1, tzinfo=UTC)
COG_YAML = "weights: [{name: tiny, target: /src/tiny, source: {uri: tiny}}]\n"


@pytest.fixture
def cog_yaml(tmp_path: Path) -> Path:
    (tmp_path / "tiny/sub").mkdir(parents=True)
    write_safetensors(tmp_path / "tiny/model.safetensors", Arrays({}))
    (tmp_path / "tiny/sub/a<b>&c.txt").write_text("hello")
    (tmp_path / "cog.yaml").write_text(COG_YAML)
    return tmp_path / "cog.yaml"


def test_text_is_as_computed_by_hand(cog_yaml: Path, tmp_path: Path) -> None:
    """Indent of two, no final newline, Go's escapes, files by path, one digest over sorted lines."""
    model = (tmp_path / "tiny/model.safetensors").read_bytes()
    first, second = hashlib.sha256(model).hexdigest(), hashlib.sha256(b"hello").hexdigest()
    lines = sorted([f"{first}  model.safetensors", f"{second}  sub/a<b>&c.txt"])
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert (
        make_lock(cog_yaml, None, NOW).text()
        == f"""{{
  "version": 1,
  "envelopeFormat": "",
  "weights": [
    {{
      "name": "tiny",
      "target": "/src/tiny",
      "sources": [
        {{
          "uri": "file://./tiny",
          "fingerprint": "sha256:{digest}",
          "include": [],
          "exclude": []
        }}
      ],
      "importedAt": "2025-01-02T03:04:05Z",
      "setDigest": "sha256:{digest}",
      "size": {len(model) + 5},
      "files": [
        {{
          "path": "model.safetensors",
          "size": {len(model)},
          "digest": "sha256:{first}"
        }},
        {{
          "path": "sub/a\\u003cb\\u003e\\u0026c.txt",
          "size": 5,
          "digest": "sha256:{second}"
        }}
      ]
    }}
  ]
}}"""
    )


def test_unchanged_weights_keep_their_lock_to_the_letter(cog_yaml: Path, tmp_path: Path) -> None:
    """Also what Cog has added: its layers belong to the same files still."""
    lock = make_lock(cog_yaml, None, NOW)
    cogs = lock.model_copy(update={"envelope_format": "v1"})
    assert make_lock(cog_yaml, cogs, LATER) is cogs
    (tmp_path / "tiny/sub/a<b>&c.txt").write_text("changed")
    changed = make_lock(cog_yaml, cogs, LATER)
    assert changed.envelope_format == ""
    assert changed.weights[0].imported_at == "2026-01-01T00:00:00Z"


def test_text_and_model_are_the_same_lock(cog_yaml: Path, tmp_path: Path) -> None:
    lock = make_lock(cog_yaml, None, NOW)
    (tmp_path / "weights.lock").write_text(lock.text())
    assert WeightsLock.load(tmp_path / "weights.lock") == lock


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{uri: 's3://someone/model'}", "not a folder of this repository"),
        ("{uri: /absolute}", "not a folder of this repository"),
        ("{uri: tiny/../../up}", "not a folder of this repository"),
        ("{uri: tiny, include: ['**/*.json']}", "has more than names"),
        ("{uri: tiny, include: ['*.txt']}", "no source has a .safetensors file"),
        ("{uri: tiny, include: ['*.gguf']}", "include and exclude take none of its 2 files"),
        ("{uri: tiny, include: '*.txt'}", "lists of patterns"),
        ("{uri: tiny, only: []}", "lists of patterns"),
        ("{uri: tiny, exclude: [model.safetensors]}", "no source has a .safetensors file"),
        ("[{uri: tiny}, {uri: tiny, include: [model.safetensors]}]", "is in two sources"),
    ],
)
def test_sources_that_cog_might_read_otherwise_are_refused(cog_yaml: Path, source: str, message: str) -> None:
    cog_yaml.write_text(f"weights: [{{name: tiny, target: /src/tiny, source: {source}}}]")
    with pytest.raises(CheckpointError, match=message):
        make_lock(cog_yaml, None, NOW)


def test_no_stanza_is_no_lock(cog_yaml: Path) -> None:
    cog_yaml.write_text("build: {gpu: true}")
    with pytest.raises(CheckpointError, match="no weights: stanza"):
        make_lock(cog_yaml, None, NOW)
