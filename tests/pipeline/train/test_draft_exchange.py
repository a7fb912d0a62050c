"""Examples with exchanged values say what their prompts say, and a draft model learns from them for a limited time."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from pipeline.train.draft_exchange import exchanged
from pipeline.train.draft_fit import fit
from pipeline.train.draft_network import DraftNetwork
from serving.text import Tokenizer
from tests.tiny_tokenizers import byte_level

PEOPLE = [("Ada", "Paris"), ("Bo", "Oslo"), ("Cleo", "Lima"), ("Dan", "Rome")]


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_bos=False)


def examples_of(tokenizer: Tokenizer, outputs: list[tuple[str, Any]]) -> list[tuple[list[int], list[int]]]:
    answers = [(text, output if isinstance(output, str) else json.dumps(output)) for text, output in outputs]
    return [(ids(tokenizer, f"Read:{text}\nAnswer:"), ids(tokenizer, answer)) for text, answer in answers]


def make(outputs: list[tuple[str, Any]], count: int = 60) -> list[tuple[str, str]]:
    """The texts of exchanged examples."""
    tokenizer = byte_level()
    made = exchanged(
        examples_of(tokenizer, outputs), [ids(tokenizer, "Read:")], tokenizer, random.Random(0), count=count
    )
    return [(tokenizer.decode(prompt), tokenizer.decode(answer)) for prompt, answer, _ in made]


def test_values_change_in_prompt_and_answer_alike() -> None:
    made = make([(f"{name} flies to {city}.", {"who": name, "trip": {"to": [city]}}) for name, city in PEOPLE])
    assert len(made) == 60
    for prompt, answer in made:
        output = json.loads(answer)
        assert prompt == f"Read:{output['who']} flies to {output['trip']['to'][0]}.\nAnswer:"
        assert output["who"] in dict(PEOPLE)
        assert output["trip"]["to"][0] in dict(PEOPLE).values()
    assert len(set(made)) > len(PEOPLE), "names meet cities that they did not have"


def test_values_that_are_not_copied_once_stay() -> None:
    outputs = [
        ("Bo meets Bo.", {"who": "Bo", "kind": "meeting"}),
        ("Ada rests.", {"who": "Ada", "also": "Ada", "kind": "rest"}),
        ("Cleo sings.", {"who": "Cleo", "kind": "music"}),
        ("Dan paints.", {"who": "Dan", "kind": "art"}),
    ]
    for prompt, answer in make(outputs):
        name = json.loads(answer)["who"]
        assert prompt.startswith((f"Read:{name} sings", f"Read:{name} paints"))
        assert json.loads(answer)["kind"] == ("music" if "sings" in prompt else "art")


@pytest.mark.parametrize("output", ["plain text", "[1, 2", {"count": 3}, "null"])
def test_answers_without_copied_values_give_none(output: Any) -> None:
    assert make([("Ada has 3 cats.", output), ("Bo has 4 cats.", output)]) == []


def test_a_prompt_without_the_marker_is_left_out() -> None:
    tokenizer = byte_level()
    examples = examples_of(tokenizer, [(name, {"who": name}) for name, _ in PEOPLE])
    assert exchanged(examples, [ids(tokenizer, "No such text")], tokenizer, random.Random(0), count=9) == []


def test_a_started_network_sees_its_examples_a_limited_number_of_times() -> None:
    """Of 800 steps of 2, a quarter is of other tasks, and six tenths of the rest are exchanged examples.

    A new network learns until its time is over.
    """
    network = DraftNetwork(torch.randn(20, 32), size=32, num_layers=1)
    seen: list[int] = []
    drawn = [0]

    def rename(pair: Any) -> Any:
        seen.append(pair[1][0])
        return pair

    def synthetic() -> Any:
        drawn[0] += 1
        return [[1, 2]], [16]

    pairs = [([[1, 2]], [token]) for token in range(3, 11)]
    options = {"minutes": 60.0, "rate": 1e-3, "batch": 2, "max_steps": None, "order": random.Random(0)}
    more = [([[1, 2]], [15])]
    steps, _ = fit(network, pairs, rename, **options, is_started=True, more=more, synthetic=synthetic)
    assert (steps, len(seen) + drawn[0]) == (800, 1600)
    assert 300 < drawn[0] < 500
    assert 600 < seen.count(15) < 840
    steps, _ = fit(network, pairs, rename, **options, is_started=True, more=more)
    assert steps == 400
    steps, _ = fit(network, pairs, rename, **options | {"max_steps": 900}, is_started=False)
    assert steps == 900
