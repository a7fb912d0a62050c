"""From inputs to a valid answer: many schemas, written in many ways, through engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from serving.engine import Engine, create_engine
from serving.engines.fake.engine import FakeEngine
from serving.types import FinishReason
from tasks.errors import OutputError
from tests.conformance.kinds import limits, tiny_checkpoint
from tests.tasks.schema.ask import answer
from tests.tasks.schema.schemas import SCHEMAS, SEPARATORS
from tests.tasks.schema.task_files import load_task
from tests.tiny_tokenizers import byte_level

CASES = [(name, value) for name, (_, values) in SCHEMAS.items() for value in values]


@pytest.mark.parametrize("separators", SEPARATORS)
@pytest.mark.parametrize(("name", "value"), CASES)
async def test_every_value_is_allowed_in_the_form_of_the_training_data(
    tmp_path: Path, name: str, value: Any, separators: str
) -> None:
    item, key, written = SEPARATORS[separators]
    task = load_task(tmp_path, SCHEMAS[name][0], item_separator=item, key_separator=key)
    text = json.dumps(value, ensure_ascii=False, separators=written)
    engine = FakeEngine(byte_level(), answer=lambda _: text)
    try:
        assert await answer(engine, task) == (text, FinishReason.STOP)
    finally:
        engine.close()


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A paged engine on a tiny random model."""
    folder = tmp_path_factory.mktemp("random")
    tiny_checkpoint(folder)
    engine = create_engine(limits("paged", folder))
    yield engine
    engine.close()


@pytest.mark.parametrize("name", SCHEMAS)
async def test_any_model_s_answer_is_valid_or_an_error(tmp_path: Path, random_model: Engine, name: str) -> None:
    schema = SCHEMAS[name][0]
    task = load_task(tmp_path, schema, template="{text}")
    complete = 0
    for seed in range(12):
        try:
            text, _ = await answer(random_model, task, temperature=1.5, seed=seed, max_tokens=120)
        except OutputError as error:
            assert "is not complete after" in str(error)
        else:
            jsonschema.validate(json.loads(text), schema)
            complete += 1
    assert complete
