"""A GGUF is converted to the Hugging Face checkpoint that transformers would load from it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.weights.errors import CheckpointError
from pipeline.weights.gguf_source import (
    GgufCheckpoint,
    generation_config,
    hugging_face_name,
    tokenizer_config,
    tokenizer_json,
    undo_rope_permutation,
)
from pipeline.weights.safetensors_io import write_safetensors
from tests.pipeline.weights.checkpoint_fixtures import TOKENS, write_gguf


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "qwen2.gguf", architecture="qwen2", pre="qwen2")


@pytest.mark.parametrize("name", ["gguf", "qwen2"])
def test_every_tensor_equals_that_of_transformers_gguf_reader(name: str, request: pytest.FixtureRequest) -> None:
    """Names, types, shapes, and above all the order of the rows of Q and K."""
    gguf = request.getfixturevalue(name)
    expected = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name).state_dict()
    checkpoint = GgufCheckpoint(gguf)
    names = checkpoint.specs().keys()
    assert names == expected.keys() - ({"lm_head.weight"} if name == "gguf" else set())  # tied
    for name, spec in checkpoint.specs().items():
        found = checkpoint.load(name)
        assert found.shape == spec.shape
        np.testing.assert_array_equal(found, expected[name].numpy(), err_msg=name)


def test_a_head_stored_twice_is_read_from_its_more_exact_copy(qwen2: Path, tmp_path: Path) -> None:
    """The file does not say whether weights are tied, so the caller does."""
    tied, untied = GgufCheckpoint(qwen2, tie_head=True), GgufCheckpoint(qwen2)
    assert tied.config()["tie_word_embeddings"]
    assert not untied.config()["tie_word_embeddings"]
    np.testing.assert_array_equal(tied.load("model.embed_tokens.weight"), untied.load("lm_head.weight"))
    write_safetensors(tmp_path / "model.safetensors", tied)
    (tmp_path / "config.json").write_text(json.dumps(tied.config()))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_qwen2_tokenizer_splits_as_its_own_does(qwen2: Path) -> None:
    """Single digits, contractions, newlines with the text before them; NFC; no padding token."""
    content = tokenizer_json(GgufCheckpoint(qwen2).metadata)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    split = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("I'll pay 12\n\n the")]
    assert split == ["I", "'ll", "Ġpay", "Ġ", "1", "2", "ĊĊ", "Ġthe"]
    assert tokenizer.normalizer.normalize_str("e\u0301") == "é"


def test_the_permutation_separates_the_halves_of_each_head() -> None:
    """GGUF rotates neighbours (2i, 2i+1); transformers rotates (i, i + head_dim / 2)."""
    neighbours = np.arange(8, dtype=np.float32).reshape(8, 1)  # two heads of four rows
    assert undo_rope_permutation(neighbours, num_heads=2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_written_folder_loads_in_transformers_as_the_same_model(gguf: Path, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(gguf)
    write_safetensors(tmp_path / "model.safetensors", checkpoint)
    (tmp_path / "config.json").write_text(json.dumps(checkpoint.config()))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    original = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ids = model.dummy_inputs["input_ids"]
    np.testing.assert_allclose(
        model(ids).logits.detach().numpy(), original(ids).logits.detach().numpy(), rtol=1e-5, atol=1e-6
    )
    assert model.config.tie_word_embeddings
    assert model.config.rms_norm_eps == 1e-5  # not 9.999999747378752e-06


def test_tokenizer_splits_digits_and_keeps_bytes(gguf: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(GgufCheckpoint(gguf).metadata)))
    assert tokenizer.encode(" the 2024").tokens == ["Ġthe", "Ġ", "2", "0", "2", "4"]
    text = "naïve 🙂\n\t12 the<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<|im_end|>").ids == [2]
    tokenizer.encode_special_tokens = True
    assert 2 not in tokenizer.encode("<|im_end|>").ids


def test_transformers_reads_the_tokenizer(gguf: Path, tmp_path: Path) -> None:
    """With and without tokenizer_config.json: engines may have only tokenizer.json."""
    checkpoint = GgufCheckpoint(gguf)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(checkpoint.metadata)))
    (tmp_path / "config.json").write_text(json.dumps(checkpoint.config()))
    expected = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("the 42 <b>").ids
    assert AutoTokenizer.from_pretrained(tmp_path)("the 42 <b>").input_ids == expected
    config = tokenizer_config(checkpoint.metadata, model_max_length=128)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("the 42 <b>").input_ids == expected
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (2, 128)


def test_generation_is_greedy_and_ends_at_the_end_token(gguf: Path) -> None:
    config = generation_config(GgufCheckpoint(gguf).metadata)
    assert config["do_sample"] is False
    assert TOKENS[config["eos_token_id"]] == "<|im_end|>"


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"ssm_conv1d.*no Llama or Qwen2"):
        hugging_face_name("blk.0.ssm_conv1d.weight")
    with pytest.raises(CheckpointError, match="architecture 'mamba'"):
        GgufCheckpoint(write_gguf(tmp_path / "mamba.gguf", architecture="mamba"))
    other = GgufCheckpoint(write_gguf(tmp_path / "other.gguf", pre="llama-bpe"))
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.ggml\.pre is 'llama-bpe'; supported are 'smollm' and 'qwen2'"
    ):
        tokenizer_json(other.metadata)
