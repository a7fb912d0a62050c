"""Answers of schemas that a grammar cannot say are valid or end with a typed error, the same with drafts as without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from serving.constraints import JsonSchemaConstraint
from serving.drafting.drafter import Drafter
from serving.engines.paged.request import Request
from serving.errors import GrammarError
from serving.grammar import answer_checks
from serving.types import FinishReason, GenerationRequest, SamplingParams
from tests.serving.engines.paged.paged_engines import Answer, make_engine, run

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SHORT = {"type": "string", "maxLength": 3}
SCHEMAS: dict[str, Any] = {
    "unique": {"type": "array", "items": DIGIT, "uniqueItems": True, "minItems": 4, "maxItems": 6},
    "not": {"type": "array", "items": SHORT | {"not": {"enum": ["", "a", "b", "1"]}}, "minItems": 2, "maxItems": 3},
    "oneOf": {
        "type": "object",
        "properties": {"a": DIGIT, "b": DIGIT},
        "additionalProperties": False,
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "contains": {"type": "array", "items": DIGIT, "contains": {"minimum": 7}, "maxItems": 9},
    "dead end": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "contains": {"const": 3}},
}
KINDS = [{"temperature": 0.0}, {"temperature": 1.5, "seed": 1}, {"temperature": 1.5, "seed": 2, "top_k": 20}]


class Wrong(Drafter):
    """Proposes a known answer, in which every third draft is another token."""

    def __init__(self, answer: Sequence[int]) -> None:
        self._answer = answer

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        start = request.num_output_tokens
        drafts = list(self._answer[start : start + max_tokens])
        return [token + 1 if place % 3 == 2 else token for place, token in enumerate(drafts)]


def ask(schema: Any, sampling: dict[str, Any]) -> GenerationRequest:
    constraint = JsonSchemaConstraint(json.dumps(schema), ",", ":")
    return GenerationRequest("one", (5, 6, 7), SamplingParams(max_tokens=200, **sampling), constraint)


def answer(schema: Any, sampling: dict[str, Any], drafts: Sequence[int] = ()) -> Answer | str:
    with make_engine(drafter=Wrong(drafts), max_draft_tokens=8 if drafts else 0) as parts:
        try:
            return run(parts.engine, ask(schema, sampling))
        except GrammarError as error:
            return str(error)


@pytest.mark.parametrize("sampling", KINDS, ids=["greedy", "sampled", "top-k"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_is_valid_or_an_error_that_names_the_keyword(name: str, sampling: dict[str, Any]) -> None:
    schema = SCHEMAS[name]
    assert answer_checks(JsonSchemaConstraint(json.dumps(schema))) is not None
    found = answer(schema, sampling)
    if isinstance(found, str):
        assert name == "dead end"
        assert found.startswith("the JSON schema: #/contains could not be met: no token can follow")
        return
    assert name != "dead end"
    assert found.finish_reason is FinishReason.STOP
    jsonschema.validate(json.loads(found.text), schema)
    with_drafts = answer(schema, sampling, found.token_ids)
    assert isinstance(with_drafts, Answer)
    assert with_drafts.token_ids == found.token_ids
    assert with_drafts.metrics.accepted_token_count
