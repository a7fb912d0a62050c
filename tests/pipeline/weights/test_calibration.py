"""Calibration texts are used completely, with the end token of answers, and as the model sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from pipeline.weights.calibration import BLOCK_TOKENS, calibration_tokens, check_texts, end_token, model_text_ids
from pipeline.weights.errors import CheckpointError
from pipeline.weights.gguf_source import GgufCheckpoint, tokenizer_json
from tests import tiny_tokenizers
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


def test_the_words_of_special_tokens_are_those_tokens(model: Path) -> None:
    """The texts are prompts and answers exactly as the model sees them."""
    start = TOKENS.index("<|im_start|>")
    (piece, *_rest) = calibration_tokens(texts(model, "<|im_start|>a<|im_end|>b", "a" * 600), model, max_tokens=5000)
    assert piece == [start, TOKENS.index("a"), END, TOKENS.index("b"), END]


def test_an_end_token_is_not_added_to_a_text_that_has_it(model: Path) -> None:
    lines = texts(model, "a<|im_end|>", "a<|im_end|> ", "a" * 600)
    pieces = calibration_tokens(lines, model, max_tokens=5000)
    assert [piece.count(END) for piece in pieces[:2]] == [1, 1]


def test_a_bos_is_not_added_to_a_text_that_begins_with_it() -> None:
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizers.metaspace().to_json())
    assert model_text_ids(backend, "<s>the") == backend.encode("<s>the", add_special_tokens=False).ids
    assert [model_text_ids(backend, text).count(backend.token_to_id("<s>")) for text in ("<s>the", "the")] == [1, 1]


def test_the_end_token_is_the_tokenizers_own_which_a_fine_tune_brings(model: Path) -> None:
    assert end_token(model) == 2
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    assert end_token(model) == TOKENS.index("<|im_start|>")
    for path in (model / "tokenizer_config.json", model / "config.json"):
        path.unlink()
    with pytest.raises(CheckpointError, match="has no eos_token_id"):
        end_token(model)


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


def test_the_least_limit_can_be_met_and_a_long_first_text_is_cut(model: Path) -> None:
    for lines in (["a" * 700], ["a" * 300, "b" * 700]):
        pieces = calibration_tokens(texts(model, *lines), model, max_tokens=BLOCK_TOKENS)
        assert sum(map(len, pieces)) == BLOCK_TOKENS


def test_texts_are_checked_without_a_tokenizer(tmp_path: Path) -> None:
    check_texts(texts(tmp_path, "é" * 300))
    with pytest.raises(CheckpointError, match="gives at most 3 tokens, at least 512 are needed"):
        check_texts(texts(tmp_path, "aa"))
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n{"prompt": "b"}\n')
    with pytest.raises(CheckpointError, match="line 2"):
        check_texts(tmp_path / "texts.jsonl")
