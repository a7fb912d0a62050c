"""The real vLLM's JSON answers have no key twice, also with a tokenizer that vLLM's own backend cannot read.

The tiny model's tokenizer has two tokens more than the model has logits, and a Metaspace decoder. Answers have drafts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tokenizers

from serving.config import Settings
from serving.constraints import Constraint, JsonSchemaConstraint, LarkConstraint
from serving.engine import Engine, create_engine
from serving.errors import GrammarError, InvalidRequestError, WeightsError
from serving.grammar import answer_checks
from serving.grammar.grammar_state import JsonText
from serving.text import Tokenizer
from serving.types import GenerationRequest, SamplingParams
from tests import tiny_tokenizers
from tests.conformance.asking import Answer, answer
from tests.serving.models import tiny_checkpoints

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
NAMES = {"type": "object", "patternProperties": {"^[ab]+$": {"enum": [1]}}, "additionalProperties": False}
MANY = {"type": "array", "items": NAMES | {"minProperties": 6}, "minItems": 9}
FEW = NAMES | {"patternProperties": {"^[ab]$": {"enum": [1]}}, "minProperties": 3}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama, whose tokens beyond the last row are a [PAD] and a word."""
    folder = tmp_path_factory.mktemp("tiny")
    content = json.loads(tiny_tokenizers.metaspace().to_json())
    content["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = tiny_checkpoints.tiny_llama(**sizes, vocab_size=backend.get_vocab_size(), eos_token_id=2)
    tiny_checkpoints.save(model, folder)
    backend.add_special_tokens(["[PAD]"])
    backend.add_tokens(["zzz"])
    tiny_tokenizers.save(Tokenizer(backend, eos_token_ids=[2]), folder)
    return folder


@pytest.fixture(scope="module")
def engine(weights: Path) -> Iterator[Engine]:
    settings = Settings(
        engine="vllm", weights_dir=weights, dtype="float32", max_model_len=256, max_num_seqs=16, num_threads=1
    )
    with closing(create_engine(settings)) as engine:
        yield engine


def request(
    weights: Path, name: str, constraint: Constraint, prompt: str = "the traces", **sampling: Any
) -> GenerationRequest:
    ids = tuple(Tokenizer.from_dir(weights).encode(prompt))
    return GenerationRequest(name, ids, SamplingParams(**{"max_tokens": 60, **sampling}), constraint)


async def ask_all(engine: Engine, weights: Path, schema: object) -> list[Answer]:
    """Greedy and sampled, with drafts and, where a seed forbids them, without."""
    kinds = [{"temperature": 0.0}, {"temperature": 2.0}, {"temperature": 2.0, "seed": 1}]
    constraint = JsonSchemaConstraint(json.dumps(schema), ",", ":")
    asked = [
        request(weights, f"{number}", constraint, "the traces of " + "ab" * number, **kinds[number % 3])
        for number in range(24)
    ]
    return await asyncio.gather(*(answer(engine, one) for one in asked))


async def test_no_object_gets_a_key_twice(engine: Engine, weights: Path) -> None:
    found = await ask_all(engine, weights, MANY)
    twice = [one.text for one in found if JsonText().after(one.text.encode()) is None]
    assert twice == []
    assert sum(one.text.count(":") for one in found) > 24
    passes = sum(one.metrics.model_passes for one in found)
    assert passes < sum(len(one.token_ids) for one in found), "drafts are accepted"


async def test_where_no_key_is_left_one_is_repeated_and_vllm_goes_on(engine: Engine, weights: Path) -> None:
    found = await ask_all(engine, weights, FEW)
    ended = [JsonText().after(one.text.encode()) for one in found if one.finish_reason == "stop"]
    assert ended and set(ended) == {None}, "three keys of two"
    await engine.health(timeout=60)


async def test_values_that_the_grammar_allows_and_the_schema_does_not_are_not_written(
    engine: Engine, weights: Path
) -> None:
    """The array may end only when it has what it must contain."""
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "array", "items": digit, "contains": {"minimum": 7}}
    found = await ask_all(engine, weights, schema)
    whole = [one.text for one in found if one.finish_reason == "stop"]
    assert whole
    checks = answer_checks(JsonSchemaConstraint(json.dumps(schema)))
    assert checks is not None
    assert [checks.first_error(json.loads(text)) for text in whole] == [None] * len(whole)


async def test_where_only_a_wrong_value_is_left_the_error_has_the_keyword(engine: Engine, weights: Path) -> None:
    one = {"type": "integer", "minimum": 1, "maximum": 1}
    schema = {"type": "array", "items": one, "minItems": 2, "maxItems": 2, "uniqueItems": True}
    with pytest.raises(GrammarError, match="#/properties/a/uniqueItems could not be met"):
        await ask_all(engine, weights, {"type": "object", "properties": {"a": schema}, "required": ["a"]})
    await engine.health(timeout=60)


async def test_where_vllm_chose_a_wrong_value_it_chooses_again(engine: Engine, weights: Path) -> None:
    """A bitmask lets tokens pass that complete a value with more than its end."""
    word = {"type": "string", "maxLength": 6, "not": {"pattern": "[a-m]$"}}
    schema = {"type": "array", "items": word, "minItems": 4, "maxItems": 4}
    found = await ask_all(engine, weights, schema)
    whole = [one.text for one in found if one.finish_reason == "stop"]
    assert whole
    for text in whole:
        jsonschema.validate(json.loads(text, strict=False), schema)


async def test_a_prompt_token_without_a_row_is_refused_and_ends_nothing(engine: Engine, weights: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt token .* is outside the vocabulary"):
        await answer(engine, request(weights, "zzz", LarkConstraint("start: /[a-z ]{3}/"), "the zzz"))
    assert (await answer(engine, request(weights, "fine", LarkConstraint("start: /[a-z ]{3}/")))).text


def test_a_tokenizer_of_a_larger_model_is_refused_before_the_model_is_loaded(weights: Path, tmp_path: Path) -> None:
    for file in weights.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 40}))
    with pytest.raises(WeightsError, match=r"has the token id .* and the model has logits for 40 tokens"):
        create_engine(Settings(engine="vllm", weights_dir=tmp_path, dtype="float32", num_threads=1))
