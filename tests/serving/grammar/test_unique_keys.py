"""No object of a JSON answer has a key twice, however its schema is open, with drafts and without."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from serving.constraints import JsonSchemaConstraint
from serving.grammar.compiler import GrammarCompiler
from serving.grammar.grammar_state import JsonText, may_repeat_keys
from serving.text import Tokenizer
from tests.tiny_tokenizers import byte_level

ANY_OBJECT = {"type": "object"}
LISTED = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}
# Tokens that end one key and begin another, or are whole keys
LONG = ('"a"', '"a":', '","', '":"', '{"a":1,"', '"a":1,"a"', '":true,"b"', '\\"')


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(byte_level().to_json())
    backend.add_tokens([AddedToken(text, normalized=False) for text in LONG])
    return Tokenizer(backend, eos_token_ids=[0])


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size)


def state_of(compiler: GrammarCompiler, schema: Any):
    return compiler.compile(JsonSchemaConstraint(json.dumps(schema), ",", ":"))


def allowed(state, tokenizer: Tokenizer) -> list[int]:
    mask = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
    state.fill_bitmask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def is_accepted(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, text: str) -> bool:
    """Byte by byte, so that no long token is in the way."""
    state = state_of(compiler, schema)
    ids = [token for char in text for token in tokenizer.encode(char, add_bos=False)]
    return state.accept(ids) == len(ids) and state.may_end


@pytest.mark.parametrize("schema", [ANY_OBJECT, LISTED, {"type": "array", "items": ANY_OBJECT, "minItems": 2}])
def test_random_answers_have_no_key_twice(compiler, tokenizer, schema):
    """Names are of two letters, so that nearly every answer would repeat one."""
    wanted = [
        token for token in range(tokenizer.vocab_size) if set(tokenizer.token_bytes(token)) <= set(b'{}[]":,ab1t')
    ]
    found = 0
    for seed in range(30):
        rng, state, ids = random.Random(seed), state_of(compiler, schema), []
        while len(ids) < 80 and not state.is_complete:
            usable = allowed(state, tokenizer)
            for token in rng.sample(usable, min(8, len(usable))):  # the mask and `accept` agree
                assert state.accept([token]) == 1
                state.rollback(1)
            ids.append(rng.choice([token for token in usable if token in wanted] or usable))
            assert state.accept(ids[-1:]) == 1
        text = tokenizer.decode(ids)
        if state.may_end:
            json.loads(text, object_pairs_hook=refuse_twice)
            found += 1
        else:  # what has been written so far is followed to its end
            assert JsonText().after(text.encode()) is not None
    assert found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":1,"b":1}', True),
        ('{"a":1,"a":2}', False),
        ('{"a":1,"\\u0061":2}', False),
        ('{"a":1,"A":2}', True),
        ('{"a":{"a":{"a":1}},"b":{"a":1}}', True),
        ('{"a":{"b":1,"b":2}}', False),
        ('{"a":[{"b":1},{"b":1}],"c":"\\"a\\":"}', True),
        ('{"b":[{"a":1}],"b":2}', False),
        ('{"é":1,"é":2}', False),
        ('{"":1,"":2}', False),
        ('{"a\\\\":1,"a\\\\":2}', False),
        ('{"a":"a","b":"a"}', True),
    ],
)
def test_texts(compiler, tokenizer, text, expected):
    assert is_accepted(compiler, tokenizer, ANY_OBJECT, text) == expected


def test_drafts_get_the_masks_that_single_tokens_get(compiler, tokenizer):
    drafts = [token for char in '{"a":1,"a' for token in tokenizer.encode(char, add_bos=False)]
    width = -(-tokenizer.vocab_size // 32)
    masks = np.zeros((len(drafts) + 1, width), np.int32)
    state = state_of(compiler, ANY_OBJECT)
    state.fill_bitmasks(drafts, masks)
    for mask, draft in zip(masks, [*drafts, None], strict=True):
        one = np.zeros(width, np.int32)
        state.fill_bitmask(one)
        assert (one == mask).all()
        if draft is not None:
            assert state.accept([draft]) == 1
    quote = tokenizer.encode('"', add_bos=False)
    assert state.accept(quote) == 0
    assert not masks[-1][quote[0] >> 5] >> (quote[0] & 31) & 1
    state.rollback(1)
    assert state.accept(tokenizer.encode("b", add_bos=False) + quote) == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"\\é', max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\é', max_size=2), inner, max_size=3),
)


@given(JSON, st.booleans(), st.data())
def test_json_without_repeated_keys_may_be_written_in_any_pieces(value, ascii_only, data):
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    cut = data.draw(st.integers(0, len(text)))
    first = JsonText().after(text[:cut])
    assert first is not None
    whole = first.after(text[cut:])
    assert whole == JsonText().after(text) and whole is not None and whole.open == ()


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, True),
        ({}, True),
        (ANY_OBJECT, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}, False),
        ({"type": "object", "patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, True),
        ({"$defs": {"a": ANY_OBJECT}, "$ref": "#/$defs/a"}, True),
        ({"anyOf": [{"type": "string"}, {"type": ["object", "null"]}]}, True),
        ({"type": "array", "items": {"enum": [{"a": 1}]}}, False),
        ({"type": "string"}, False),
        ({"type": "array"}, True),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, True),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, False),
        ({"type": "object", "properties": {"tags": {"type": "array"}}, "additionalProperties": False}, True),
    ],
)
def test_schemas_without_open_objects_need_no_look_at_keys(schema, expected):
    assert may_repeat_keys(schema) == expected
