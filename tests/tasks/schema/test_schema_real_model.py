"""A real fine-tuned model as a schema task: the small one, without Honeycomb's code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.answer_format.derive import derive_format
from pipeline.answer_format.example_answers import parse_answer
from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.text import Tokenizer
from tasks.honeycomb.task import create as create_honeycomb
from tasks.schema.task import SchemaTask
from tasks.schema.task import create as create_schema
from tests.small_model import NEEDS_WEIGHTS, WEIGHTS
from tests.tasks.schema.ask import answer

ROOT = Path(__file__).parents[3]
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
VALUE = {"anyOf": [TEXT, {"type": "number"}, {"type": "boolean"}, {"type": "array", "items": TEXT}]}
# As an author might write it, in alphabetical order.
SCHEMA = {
    "type": "object",
    "properties": {
        "breakdowns": {"type": "array", "items": TEXT},
        "calculations": {"type": "array", "items": {"$ref": "#/$defs/Calculation"}},
        "compare_time_offset_seconds": NUMBER,
        "end_time": NUMBER,
        "filter_combination": {"enum": ["AND", "OR"]},
        "filters": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"column": TEXT, "op": TEXT, "value": VALUE},
                "required": ["column", "op"],
            },
        },
        "granularity": NUMBER,
        "havings": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"calculate_op": TEXT, "column": TEXT, "op": TEXT, "value": {"type": "number"}},
            },
        },
        "limit": NUMBER,
        "orders": {
            "type": "array",
            "items": {"type": "object", "properties": {"column": TEXT, "op": TEXT, "order": TEXT}},
        },
        "start_time": NUMBER,
        "time_range": NUMBER,
    },
    "$defs": {"Calculation": {"type": "object", "properties": {"column": TEXT, "op": TEXT}, "required": ["op"]}},
}
TEMPLATE = (
    "Honeycomb is an observability platform. Write the Honeycomb query that answers the question, using only the "
    "columns given.\n\n### Columns:\n{cols}\n\n### NLQ:\n{nlq:json}\n\n### Response:\n"
)

pytestmark = [pytest.mark.weights, NEEDS_WEIGHTS]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = create_engine(Settings(engine="paged", weights_dir=WEIGHTS, max_num_seqs=4))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> SchemaTask:
    """The schema, in the form that the model's training answers have."""
    lines = (ROOT / "examples" / "honeycomb" / "small" / "answers.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(line)["answer"] for line in lines[:2000]]
    found = derive_format(SCHEMA, [parse_answer(f"line {i}", text) for i, text in enumerate(texts, 1)])
    assert (found.item_separator, found.key_separator, found.notes, found.refused) == (", ", ": ", (), ())
    folder = tmp_path_factory.mktemp("task")
    content: dict[str, Any] = {"task": "schema", "name": "x", "schema": found.schema, "template": TEMPLATE}
    content |= {"inputs": ["nlq", "cols"], "item_separator": ", ", "key_separator": ": "}
    (folder / "task.json").write_text(json.dumps(content))
    return create_schema(folder, Tokenizer.from_dir(WEIGHTS))


async def test_its_answers_are_those_of_the_honeycomb_task(engine: Engine, task: SchemaTask) -> None:
    honeycomb = create_honeycomb(WEIGHTS, Tokenizer.from_dir(WEIGHTS))
    lines = (ROOT / "lab" / "bench" / "requests.jsonl").read_text("utf-8").splitlines()
    same = 0
    for record in [json.loads(line) for line in lines[:10]]:
        inputs = {"nlq": record["questions"][0], "cols": repr(list(record["cols"]))}
        assert task.prepare(inputs).token_ids == honeycomb.prepare(inputs).token_ids
        same += await answer(engine, task, **inputs) == await answer(engine, honeycomb, **inputs)
    assert same >= 8, f"{same} of 10 answers are those of the Honeycomb task"
