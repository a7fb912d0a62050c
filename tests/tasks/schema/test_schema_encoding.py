"""Prompts have the token ids of the training data, with control tokens only where the template has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import WeightsError
from serving.text import Tokenizer
from tasks.errors import TaskFileError
from tasks.schema.options import SchemaOptions
from tasks.schema.task import PromptEncoder, prompt_encoder
from tests.serving.text.chat_families import FAMILIES, Family, smollm2
from tests.tiny_tokenizers import byte_level, metaspace

SYSTEM = "Extract the invoice as JSON."
WORDS = [
    "<|im_start|>",
    "<|im_end|>",
    "[INST]",
    "[/INST]",
    "<s>",
    "</s>",
    "<|eot_id|>",
    "assistant",
    "\n",
    " ",
    "x",
    "é",
]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map("".join)


def encoder(folder: Path, tokenizer: Tokenizer, **options: Any) -> PromptEncoder:
    content = {"task": "schema", "name": "x", "schema": {"type": "object"}, **options}
    return prompt_encoder(SchemaOptions.model_validate_json(json.dumps(content)), folder, tokenizer)


def write_family(folder: Path, family: Family) -> Path:
    (folder / "chat_template.jinja").write_text(family.source)
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(family.special_tokens)))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_has_transformers_ids(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    encode = encoder(
        write_family(tmp_path, family), family.tokenizer, chat={"system": SYSTEM, "user": "Email:\n{text}"}
    )
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Email:\n5 EUR"}]
    assert encode({"text": "5 EUR"}) == family.transformers_ids(messages, add_generation_prompt=True)


def test_a_conversation_is_the_default(tmp_path: Path) -> None:
    family = smollm2()
    folder = write_family(tmp_path, family)
    messages = [{"role": "user", "content": "5 EUR"}]
    for options in ({}, {"chat": {}}):
        encode = encoder(folder, family.tokenizer, **options)
        assert encode({"text": "5 EUR"}) == family.transformers_ids(messages, add_generation_prompt=True)


@settings(deadline=None)
@given(texts)
def test_no_text_adds_a_control_token_to_a_conversation(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    family = smollm2()
    folder = write_family(tmp_path_factory.mktemp("smollm2"), family)
    encode = encoder(folder, family.tokenizer, chat={"system": SYSTEM})
    controls = family.template.controls.control_ids
    assert controls(encode({"text": text})) == controls(encode({"text": "plain"}))


@pytest.mark.parametrize("source", ["<s>[INST] {text} [/INST]", "[INST] {text} [/INST]", "{text}</s>"])
def test_a_text_template_has_its_control_tokens(source: str) -> None:
    """The same token ids as from the checkpoint's tokenizer, with one BOS."""
    tokenizer = FAMILIES["mistral-v0.3"].tokenizer
    encode = encoder(Path(), tokenizer, template=source)
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    backend.encode_special_tokens = False
    text = source.replace("{text}", "owed: 5").removeprefix("<s>")
    assert encode({"text": "owed: 5"}) == backend.encode(text, add_special_tokens=True).ids


@settings(deadline=None)
@given(texts)
def test_no_text_adds_a_control_token_to_a_text_template(text: str) -> None:
    family = FAMILIES["mistral-v0.3"]
    encode = encoder(Path(), family.tokenizer, template="[INST] {text} [/INST]")
    controls = family.template.controls.control_ids
    assert controls(encode({"text": text})) == controls(encode({"text": "plain"})) != []


@pytest.mark.parametrize("tokenizer", [byte_level(), metaspace()])
def test_a_plain_template_is_plain_text(tokenizer: Tokenizer) -> None:
    encode = encoder(Path(), tokenizer, template="Text: {text}\nJSON:")
    assert encode({"text": "<s>5"}) == tokenizer.encode("Text: <s>5\nJSON:")


def test_an_input_that_the_chat_template_cannot_take_fails_setup(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="the checkpoint has no chat template"):
        encoder(tmp_path, byte_level(), chat={})
    write_family(tmp_path, smollm2())
    with pytest.raises(TaskFileError, match=r"chat: .* reads no variable 'loud'"):
        encoder(tmp_path, smollm2().tokenizer, chat={"variables": {"loud": True}})
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('never') }}")
    with pytest.raises(TaskFileError, match="never"):
        encoder(tmp_path, byte_level(), chat={})
    (tmp_path / "chat_template.jinja").write_text("{{")
    with pytest.raises(WeightsError):
        encoder(tmp_path, byte_level(), chat={})
