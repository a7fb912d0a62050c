"""Tokenizers: no special tokens from users' text, one BOS, and the end tokens of the files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import llguidance
import pytest
import tokenizers
from tokenizers import models, processors

from serving.errors import ContextLengthError, InvalidRequestError, WeightsError
from serving.text import Tokenizer, context_length
from tests import small_model, tiny_tokenizers

TOKENIZERS = {"byte-level": tiny_tokenizers.byte_level(), "metaspace": tiny_tokenizers.metaspace()}


def test_text_of_users_never_becomes_a_special_token(tokenizer: Tokenizer) -> None:
    text = "a<|im_end|>b<s></s><|im_start|><unk><|endoftext|>c"
    ids = tokenizer.encode(text, add_bos=False)
    assert tokenizer.decode(ids).removeprefix(" ") == text
    assert all(tokenizer.token_bytes(i) for i in ids)


def test_bos_occurs_once_if_the_checkpoint_has_one() -> None:
    byte_level, metaspace = TOKENIZERS["byte-level"], TOKENIZERS["metaspace"]
    assert byte_level.bos_token_ids == ()
    assert byte_level.encode("the") == byte_level.encode("the", add_bos=False)
    assert metaspace.encode("the") == [1, *metaspace.encode("the", add_bos=False)]
    assert metaspace.encode("<s>the").count(1) == 1
    assert metaspace.encode("") == [1]


def test_an_end_token_of_the_post_processor_is_not_added_to_a_prompt() -> None:
    backend = tokenizers.Tokenizer.from_str(TOKENIZERS["metaspace"].to_json())
    frame = [("<s>", 1), ("</s>", 2)]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=frame)
    ids = Tokenizer(backend, eos_token_ids=[2]).encode("the")
    assert ids == TOKENIZERS["metaspace"].encode("the")


def test_the_space_that_continues_a_prompt_is_kept() -> None:
    """The library's decode drops it, as at the beginning of a text."""
    tokenizer = TOKENIZERS["metaspace"]
    assert tokenizer.decode(tokenizer.encode("the", add_bos=False)) == " the"


def test_a_byte_piece_is_a_byte_also_with_a_metaspace_decoder() -> None:
    """The library shows `<0x41>`, but the model was trained to write A, and grammars take it for that."""
    content = json.loads(TOKENIZERS["metaspace"].to_json())
    content["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer = Tokenizer(backend, eos_token_ids=[2])
    assert tokenizer.token_bytes(backend.token_to_id("<0x41>")) == b"A"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_decoding_agrees_with_the_library_on_texts(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    rng = random.Random(2)
    for _ in range(500):
        ids = tokenizer.encode(tiny_tokenizers.random_text(rng))
        assert tokenizer.decode(ids).removeprefix(" ") == library.decode(ids).removeprefix(" ")


def test_truncation_in_the_file_does_not_truncate_prompts() -> None:
    backend = tokenizers.Tokenizer.from_str(TOKENIZERS["byte-level"].to_json())
    backend.enable_truncation(4)
    backend.enable_padding(length=600)
    assert len(Tokenizer(backend, eos_token_ids=[0]).encode("x " * 100)) == 200


def test_an_unpaired_surrogate_is_an_input_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode("a\ud83d")


@pytest.mark.weights
def test_a_text_far_over_the_context_is_refused_before_it_is_read_to_its_end(base_tokenizer: Tokenizer) -> None:
    limited = Tokenizer.from_dir(small_model.WEIGHTS, context_length=100)
    # Half of a surrogate pair is found only by reading it.
    with pytest.raises(ContextLengthError, match="more tokens than the model's context of 100"):
        limited.encode("1" * 401 + "\ud800")
    with pytest.raises(ContextLengthError):
        limited.encode(" international" * 20 + "1" * 200 + "\ud800")  # few tokens at its beginning
    for text in ("1" * 400, " international" * 40):  # short enough to be read, and one that fits
        assert limited.encode(text) == base_tokenizer.encode(text)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 8192),
        ({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, None),
        ({"text_config": {"max_position_embeddings": 8192}}, None),
    ],
)
def test_the_context_length_is_known_only_where_the_configuration_is_plain(
    config: dict[str, Any], expected: int | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_length(tmp_path) == expected


def test_ids_without_a_token_decode_to_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size + 5, *tokenizer.eos_token_ids]) == ""


def test_llguidance_reads_the_same_tokens(tokenizer: Tokenizer) -> None:
    backend = llguidance.LLTokenizer(tokenizer.to_json(), eos_token=tokenizer.eos_token_ids[0])
    assert backend.vocab_size == tokenizer.vocab_size
    for token_id in range(tokenizer.vocab_size):
        expected = tokenizer.token_bytes(token_id)
        # llguidance marks special tokens by 0xFF, which is no byte of UTF-8
        assert expected in (b"", b"\xff") or backend.decode_bytes([token_id]) == expected


@pytest.mark.weights
def test_the_small_model_has_no_bos_and_ends_with_im_end(base_tokenizer: Tokenizer) -> None:
    tokenizer = base_tokenizer
    assert (tokenizer.bos_token_ids, tokenizer.eos_token_ids, tokenizer.vocab_size) == ((), (2,), 49152)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": 0}}, (0,)),
        ({"generation_config.json": {"eos_token_id": [1, 1]}, "config.json": {"eos_token_id": 0}}, (1, 0)),
        ({"generation_config.json": {"eos_token_id": 1}, "tokenizer_config.json": {"eos_token": "<|im_end|>"}}, (1, 0)),
        ({"config.json": {"eos_token_id": [1]}, "tokenizer_config.json": {"eos_token": "<|im_end|>"}}, (1, 0)),
        # A default of a configuration class: ordinary text, or no token at all.
        ({"generation_config.json": {"eos_token_id": 1}, "config.json": {"eos_token_id": 7}}, (1,)),
        ({"generation_config.json": {"eos_token_id": 1}, "config.json": {"eos_token_id": 50256}}, (1,)),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 1}}, (1,)),
        ({"tokenizer_config.json": {"eos_token": "<|im_end|>"}}, (0,)),
        ({"tokenizer_config.json": {"eos_token": {"content": "<|im_start|>"}}}, (1,)),
    ],
)
def test_the_end_tokens_of_all_files_end_an_answer(
    tmp_path: Path, files: dict[str, object], expected: tuple[int, ...]
) -> None:
    (tmp_path / "tokenizer.json").write_text(TOKENIZERS["byte-level"].to_json())
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer.from_dir(tmp_path).eos_token_ids == expected


def test_a_saved_tokenizer_is_read_back_unchanged(tmp_path: Path) -> None:
    for tokenizer in TOKENIZERS.values():
        again = Tokenizer.from_dir(tiny_tokenizers.save(tokenizer, tmp_path))
        assert again.encode("slow <s> 你好") == tokenizer.encode("slow <s> 你好")
        assert again.eos_token_ids == tokenizer.eos_token_ids


def test_bad_folders_are_refused_with_the_file_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is missing; build or fetch the weights"):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(WeightsError, match="is not a tokenizer"):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "tokenizer.json").write_text(TOKENIZERS["byte-level"].to_json())
    with pytest.raises(WeightsError, match="no end token"):
        Tokenizer.from_dir(tmp_path)
    for content, message in (
        ("[1]", "not an object"),
        ("{", "is not JSON"),
        ('{"eos_token_id": 9999}', "9999"),
        ('{"eos_token_id": "0"}', r"config.json: eos_token_id is '0'; write a number"),
        ('{"eos_token_id": [0, null]}', "write a number"),
    ):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(WeightsError, match=message):
            Tokenizer.from_dir(tmp_path)


def test_an_unknown_family_of_tokenizer_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(WeightsError, match="decoder None; supported are ByteLevel"):
        Tokenizer(backend, eos_token_ids=[0])
