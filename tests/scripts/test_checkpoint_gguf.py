"""A GGUF becomes the Hugging Face checkpoint that transformers itself would load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from checkpoint_fixtures import TOKENS, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.checkpoint.errors import CheckpointError
from scripts.checkpoint.gguf_source import GgufCheckpoint, hugging_face_name, undo_rope_permutation
from scripts.checkpoint.safetensors_io import write_safetensors
from scripts.checkpoint.tokenizer_files import generation_config, tokenizer_config, tokenizer_json


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_every_tensor_is_what_transformers_reads_from_the_same_file(gguf: Path) -> None:
    """Names, types, shapes, and above all the order of the rows of Q and K."""
    expected = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name).state_dict()
    checkpoint = GgufCheckpoint(gguf)
    names = checkpoint.specs().keys()
    assert names == expected.keys() - {"lm_head.weight"}  # tied
    for name, spec in checkpoint.specs().items():
        found = checkpoint.load(name)
        assert found.shape == spec.shape
        np.testing.assert_array_equal(found, expected[name].numpy(), err_msg=name)


def test_permutation_puts_the_two_halves_of_each_head_apart() -> None:
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


def test_transformers_takes_the_tokenizer_as_it_is(gguf: Path, tmp_path: Path) -> None:
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


def test_what_is_no_plain_llama_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"ssm_conv1d.*no plain Llama"):
        hugging_face_name("blk.0.ssm_conv1d.weight")
    with pytest.raises(CheckpointError, match="architecture 'mamba'"):
        GgufCheckpoint(write_gguf(tmp_path / "mamba.gguf", architecture="mamba"))
    other = GgufCheckpoint(write_gguf(tmp_path / "other.gguf", pre="llama-bpe"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.pre is 'llama-bpe'; only 'smollm'"):
        tokenizer_json(other.metadata)
