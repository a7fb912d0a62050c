"""Synthetic tasks have answers that follow from their texts, and a draft model learns from them."""

from __future__ import annotations

import datetime
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from pipeline.answer_format.derive import TextCheck
from pipeline.train.pretrain.run import PretrainSettings, key_names, pretrain
from pipeline.train.pretrain.statements import make_statement
from pipeline.train.pretrain.tasks import Maker
from pipeline.train.pretrain.values import CURRENCIES, ENUMS, amount, count, date, iso_date, quantity
from pipeline.train.pretrain.words import Words, spell
from serving.weights.draft_weights import DRAFT_MODEL, DraftWeights
from tasks.schema.task import answer_constraint
from tests.pipeline.train.training_fixtures import write_base
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a model this small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def words(seed: int = 0, keys: tuple[str, ...] = ()) -> Words:
    return Words(TOKENIZER, random.Random(seed), keys)


def texts(value: Any) -> Iterator[str]:
    """The texts of a value that are not keys."""
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(part)
    if isinstance(value, str):
        yield value


def test_answers_are_valid_and_their_texts_come_from_the_prompt() -> None:
    """Values that are said in other words are those of enums, dates, currencies, names of functions and statements."""
    maker, other_words = Maker(words()), {str(value) for _, meanings in ENUMS for value in meanings}
    missing = total = 0
    for _ in range(500):
        example = maker.make()
        value = json.loads(example.answer)
        jsonschema.validate(value, example.schema)
        prompt = example.prompt.lower()
        assert all(written.lower() in prompt for written in example.written), example
        found = [text for text in texts(value) if text not in other_words and text not in CURRENCIES.values()]
        total += len(found)
        missing += sum(text.lower() not in prompt for text in found)
    assert total > 1_000
    assert missing < total / 5


def test_the_grammar_of_a_schema_task_allows_the_answers() -> None:
    maker, checked = Maker(words(1)), 0
    while checked < 40:
        example = maker.make()
        if '": ' in example.answer or ", " in example.answer:
            constraint = answer_constraint(example.schema, ",[ ]?", ":[ ]?")
            assert TextCheck(constraint).fault(example.answer) is None, example
            checked += 1


def test_most_keys_are_not_in_the_prompt_and_no_two_tasks_are_the_same() -> None:
    maker = Maker(words(2))
    examples = [maker.make() for _ in range(100)]
    assert len({json.dumps(example.schema) for example in examples}) > 80
    assert sum("JSON" in example.prompt for example in examples) < 30


def test_values_are_what_the_text_says() -> None:
    source = words(3)
    for _ in range(200):
        text, day = date(source)
        assert str(day.year) in text and str(day.day) in text
        text, iso = iso_date(source)
        assert str(datetime.date.fromisoformat(iso).year) in text
        text, currency, number = amount(source)
        assert float(re.sub(r"[^\d.]", "", text)) == number
        assert currency in text or any(sign in text for sign, name in CURRENCIES.items() if name == currency)
        text, unit, number = quantity(source)
        assert text.removesuffix(unit).strip() == str(number)
        text, whole = count(source)
        assert text in (str(whole), {2: "two", 7: "seven"}.get(whole, text))


def test_a_statement_has_the_columns_of_its_question() -> None:
    source = words(4)
    for _ in range(100):
        question, statement, columns = make_statement(source)
        assert all(column.lower() in question.lower() for column in columns)
        assert statement and "{" not in statement


@pytest.mark.parametrize(
    ("style", "key"),
    [("snake", "due_date"), ("camel", "dueDate"), ("kebab", "due-date"), ("Title", "Due Date"), ("UPPER", "DUE_DATE")],
)
def test_keys_are_spelled_in_the_ways_that_people_use(style: str, key: str) -> None:
    assert spell(["due", "date"], style) == key


def test_names_of_keys_are_read_from_schemas(tmp_path: Path) -> None:
    inner = {"type": "object", "properties": {"dueDate": {}, "x" * 50: {}}}
    schema = {"properties": {"items": {"type": "array", "items": inner}, "7": {}}}
    (tmp_path / "schemas.jsonl").write_text(json.dumps({"schema": schema}) + "\n")
    assert key_names(tmp_path / "schemas.jsonl") == ["dueDate", "items"]
    source = words(keys=("dueDate",))
    assert ["due", "date"] in [source.key() for _ in range(20)]


def test_training_on_synthetic_tasks_lowers_the_loss_and_is_recorded(tmp_path: Path) -> None:
    weights = write_base(tmp_path / "model")

    def loss(steps: int) -> float:
        given = PretrainSettings(600.0, examples=200, rate=1e-2, batch=16, size=32, layers=2, max_steps=steps)
        with torch.compiler.set_stance("force_eager"):
            pretrain(weights, tmp_path / str(steps), given)
        run = json.loads((tmp_path / str(steps) / "draft-run.json").read_text())
        assert (run["steps"], run["settings"]["size"], run["embedding"]["shape"]) == (steps, 32, [260, 48])
        return float(run["validation"]["loss"])

    assert loss(60) < 0.8 * loss(1)
    loaded = DraftWeights.load(tmp_path / "60" / DRAFT_MODEL, torch.zeros(260, 48).numpy())
    assert len(loaded.markers) == 1
