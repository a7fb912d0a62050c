"""One engine answers all rows: failures stay with their rows, a dead engine is replaced, equal prefixes meet."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from pipeline.batch.engines_runner import EnginesRunner
from pipeline.batch.errors import BatchError
from pipeline.batch.local_worker import LocalWorker, PreparedRow, answer_row
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Row, RowAnswer
from serving.engines.fake.engine import FakeEngine
from serving.errors import ContextLengthError
from serving.model import Model
from serving.text import Tokenizer
from serving.types import GenerationOutput, GenerationRequest
from tasks.task import create_task
from tests.tasks.schema.task_files import write_task

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
INPUTS = {
    "components": {
        "schemas": {
            "Input": {
                "properties": {"text": {"type": "string"}, "max_tokens": {"type": "integer", "default": 50}},
                "required": ["text"],
            }
        }
    }
}


class Models:
    """Starts models whose engine answers `{"n": 1}`, and dies where the prompt has the word `deadly`.

    Args:
        folder: for the task.
        works_after_death: whether engines after the first one work.
    """

    def __init__(self, folder: Path, works_after_death: bool = True) -> None:
        self._folder = write_task(folder, SCHEMA, template="{text}")
        self._works_after_death = works_after_death
        self.engines: list[FakeEngine] = []
        self.prompts: list[str] = []

    def start(self) -> Model:
        tokenizer = Tokenizer.from_dir(self._folder)
        engine = FakeEngine(tokenizer, answer=self._answer, max_num_seqs=4)
        self.engines.append(engine)
        if len(self.engines) > 1 and not self._works_after_death:
            engine.kill()
        return Model(create_task(self._folder, tokenizer), engine, tokenizer)

    def _answer(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if "deadly" in prompt:
            self.engines[-1].kill()
        return '{"n": 1}'


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    made = Models(tmp_path / "weights")
    yield made
    for engine in made.engines:
        engine.close()


async def run(
    models: Models, texts: list[Any], may_start: Callable[[], bool] = lambda: True, **options: Any
) -> list[RowAnswer]:
    """The answers in the order of the rows."""
    inputs = RowInputs(INPUTS, ("text", "max_tokens"), {}, ())
    runner = EnginesRunner([LocalWorker(models.start, inputs)], **{"concurrency": 4, "num_rows": len(texts), **options})
    rows = (
        Row(number, text if isinstance(text, dict) else {"text": text}, None if text is not None else "cannot be read")
        for number, text in enumerate(texts)
    )
    async with aclosing(runner.run(rows, may_start)) as answers:
        found = [answer async for answer in answers]
    runner.close()
    return sorted(found, key=lambda one: one.number)


async def test_every_row_gets_an_answer_or_the_reason_why_not(models: Models) -> None:
    found = await run(models, ["a", None, {"text": 5}, {"text": "b", "max_tokens": 2}, {"text": " "}, "c" * 9000, "d"])
    assert [one.number for one in found] == list(range(7))
    assert [one.answer for one in found] == ['{"n": 1}', None, None, None, None, None, '{"n": 1}']
    reasons = ["cannot be read", "text: 5 is not of type 'string'", "max_tokens: the answer was not complete", "blank"]
    for one, reason in zip(found[1:5], reasons, strict=True):
        assert reason in str(one.error)
    assert "context" in str(found[5].error) or "limit" in str(found[5].error)
    assert (found[0].input_tokens, found[0].error) == (1, None)
    assert found[0].output_tokens > 1
    assert found[3].output_tokens == 2, "tokens of a refused answer were spent too"


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_row_that_kills_the_engine_is_a_failure_and_the_others_are_answered(
    models: Models, concurrency: int
) -> None:
    texts = [f"row {i}" + " deadly" * (i in (3, 4, 17)) for i in range(20)]
    found = await run(models, texts, concurrency=concurrency, window=7)
    assert [one.number for one in found] == list(range(20))
    assert {one.number for one in found if one.error is not None} == {3, 4, 17}
    assert "the engine died when it answered this row alone: the engine was killed" in str(found[3].error)


async def test_a_run_whose_engine_does_not_start_again_stops(tmp_path: Path) -> None:
    models = Models(tmp_path / "weights", works_after_death=False)
    with pytest.raises(BatchError, match="no engine works: the engine was killed"):
        await run(models, ["a", "deadly", "b"])


async def test_prompts_are_sorted_within_a_window(models: Models) -> None:
    texts = ["columns 2: a", "columns 1: a", "columns 2: b", "columns 1: b", "columns 0: a", "columns 1: c"]
    await run(models, texts, concurrency=1, window=4)
    grouped = [prompt.partition(":")[0][-1] for prompt in models.prompts if prompt]  # that of the probe is empty
    assert sorted(grouped[:4]) == ["1", "1", "2", "2"]
    assert grouped[0] == grouped[1]
    assert grouped[2] == grouped[3]


async def test_no_row_is_started_after_the_budget(models: Models) -> None:
    left = iter([True] * 5)
    found = await run(models, ["a"] * 20, may_start=lambda: next(left, False))
    assert len(found) == 5


async def test_rows_are_read_as_they_are_needed(models: Models) -> None:
    """Two windows at most are in memory, whatever the size of the input."""
    read: list[int] = []

    def endless() -> Iterator[Row]:
        number = 0
        while True:
            read.append(number)
            yield Row(number, {"text": "a"})
            number += 1

    worker = LocalWorker(models.start, RowInputs(INPUTS, ("text",), {}, ()))
    runner = EnginesRunner([worker], concurrency=2, num_rows=1 << 40, window=3)
    async with aclosing(runner.run(endless(), lambda: True)) as answers:
        async for _ in answers:
            break
    runner.close()
    assert len(read) <= 9


class FullEngine:
    """Has no room for any prompt."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput]:
        raise ContextLengthError("the prompt is too long")
        yield


async def test_a_row_for_an_adapter_is_answered_with_the_adapter_s_task(models: Models, tmp_path: Path) -> None:
    own = models.start()
    theirs = write_task(tmp_path / "theirs", SCHEMA, template="{question}", inputs=["question"])
    tasks = {"theirs": create_task(theirs, own.tokenizer)}
    model = Model(own.task, FullEngine(), own.tokenizer, adapter_tasks=tasks)
    for adapter, name in ((None, "text"), ("theirs", "question")):
        prepared = PreparedRow(Row(0, {name: "a"}, None), model.prepare({name: "a", "adapter": adapter}), adapter)
        assert str((await answer_row(model, prepared)).error).startswith(f"{name}: the prompt is too long")
