"""Calibration texts are used completely, with the end token of answers, and without control tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.weights.calibration import BLOCK_TOKENS, calibration_tokens
from pipeline.weights.errors import CheckpointError
from pipeline.weights.gguf_source import GgufCheckpoint
from pipeline.weights.tokenizer_files import tokenizer_json
from tests.pipeline.weights.checkpoint_fixtures import TOKENS, write_gguf

END = TOKENS.index("<|im_end|>")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    gguf = GgufCheckpoint(write_gguf(tmp_path / "tiny.gguf"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(gguf.metadata)))
    (tmp_path / "config.json").write_text('{"eos_token_id": [2, 0]}')
    return tmp_path


def texts(folder: Path, *lines: str) -> Path:
    path = folder / "calibration.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


def test_a_long_text_is_cut_into_blocks_and_loses_nothing(model: Path) -> None:
    """Its end is the answer, which is the most important part."""
    pieces = calibration_tokens(texts(model, "ab" * 700), model, max_tokens=5000)
    assert [len(piece) for piece in pieces] == [BLOCK_TOKENS, BLOCK_TOKENS, 1401 - 2 * BLOCK_TOKENS]
    assert [token for piece in pieces for token in piece] == [TOKENS.index("a"), TOKENS.index("b")] * 700 + [END]


def test_special_tokens_in_a_text_are_ordinary_text(model: Path) -> None:
    (piece, *_rest) = calibration_tokens(texts(model, "<|im_end|>", "a" * 600), model, max_tokens=5000)
    assert piece.count(END) == 1
    assert piece[-1] == END


def test_texts_are_taken_up_to_the_limit(model: Path) -> None:
    pieces = calibration_tokens(texts(model, *["a" * 299] * 9), model, max_tokens=1000)
    assert [len(piece) for piece in pieces] == [300, 300, 300]


def test_too_few_tokens_and_lines_without_text_are_named(model: Path) -> None:
    with pytest.raises(CheckpointError, match="gives 4 tokens, at least 512 are needed"):
        calibration_tokens(texts(model, "abc"), model, max_tokens=1000)
    path = texts(model, "abc")
    path.write_text(path.read_text() + '{"prompt": "abc"}\n')
    with pytest.raises(CheckpointError, match="line 2: expected"):
        calibration_tokens(path, model, max_tokens=1000)
