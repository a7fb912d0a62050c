"""A model object without Cog: opened, asked, read in pieces, left early, closed."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import save_file

from lab.endurance.own_weights import lock_text
from serving.config import Settings
from serving.engines.fake.engine import FakeEngine
from serving.errors import EngineDeadError, InvalidRequestError, WeightsError
from serving.model import CHECK, CHECKED, Model
from tasks.confidence import Calibration, calibration_path
from tasks.errors import InputError, OutputError
from tests.cog.tiny_weights import make_tiny_weights
from tests.tasks.schema.task_files import write_task

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest_asyncio.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """A checkpoint with its lock beside it."""
    monkeypatch.setenv("ENGINE", "fake")
    weights = write_task(tmp_path / "mine", SCHEMA)
    save_file({"unused": np.zeros(1, np.float32)}, weights / "model.safetensors")
    (tmp_path / "mine.lock").write_text(lock_text(weights))
    yield weights
    gc.unfreeze()


def writes(model: Model, text: str, **options: float) -> Callable[[], int]:
    """Let the model's engine write this text; returns what counts its running requests."""
    model.engine.close()
    engine = FakeEngine(model.tokenizer, answer=lambda prompt: text, **options)
    model.engine = engine
    return lambda: engine.stats().num_running


async def test_three_lines_give_an_answer(folder: Path) -> None:
    model = await Model.open(folder)
    writes(model, '{"n": 12}')
    assert str(await model.answer(text="twelve")) == '{"n": 12}'
    model.close()


async def test_what_belongs_to_a_closed_model_can_be_collected(folder: Path) -> None:
    """Else an interpreter that ends cannot free it either, and duckdb's types are reported as leaked."""
    model = await Model.open(folder)
    assert gc.get_freeze_count() > 0
    model.close()
    assert gc.get_freeze_count() == 0


async def test_an_answer_has_pieces_and_then_what_is_known_of_it(folder: Path) -> None:
    model = await Model.open(str(folder))
    writes(model, '{"n": 12}')
    answer = model.answer(text="twelve", max_tokens=50)
    pieces = [piece async for piece in answer]
    assert "".join(pieces) == answer.text == '{"n": 12}' and len(pieces) > 2
    assert answer.metrics["finish_reason"] == "stop"
    assert answer.metrics["output_token_count"] == len(model.tokenizer.encode(answer.text, add_bos=False))
    model.close()


async def test_errors_say_why_and_leave_what_was_written(folder: Path) -> None:
    model = await Model.open(folder)
    writes(model, '{"n": 12}')
    with pytest.raises(InputError, match=r"^text: "):
        await model.answer(text=" ")
    cut = model.answer(text="twelve", max_tokens=2)
    with pytest.raises(InvalidRequestError, match="max_tokens: the answer was not complete after 2 tokens"):
        await cut
    assert cut.raw and '{"n": 12}'.startswith(cut.raw) and cut.metrics["finish_reason"] == "length"
    model.close()
    with pytest.raises(EngineDeadError):
        await model.answer(text="twelve")


async def test_whoever_stops_reading_ends_the_work(folder: Path) -> None:
    model = await Model.open(folder)
    num_running = writes(model, json.dumps({"n": 10**60}), step_seconds=0.02)
    answer = model.answer(text="many")
    async with aclosing(answer.pieces()) as pieces:
        async for _ in pieces:
            assert num_running() == 1
            break
    assert answer.metrics == {"input_token_count": answer.metrics["input_token_count"], "output_token_count": 1}
    await model.engine.health(60)  # a step later
    assert num_running() == 0
    model.close()


async def test_weights_are_loaded_only_if_they_are_those_of_the_lock(folder: Path) -> None:
    task = folder / "task.json"
    task.write_text(task.read_text() + " ")
    with pytest.raises(WeightsError, match=r"task\.json"):
        await Model.open(folder)
    model = Model.load(Settings(weights_dir=folder), is_locked=False)
    model.close()


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "number"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def test_a_persons_answer_is_checked_and_written_as_the_model_writes_without_asking_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE", "fake")
    weights = write_task(tmp_path / "mine", PERSON)
    save_file({"unused": np.zeros(1, np.float32)}, weights / "model.safetensors")
    (tmp_path / "mine.lock").write_text(lock_text(weights))
    model = await Model.open(weights)
    writes(model, "the engine was asked")

    async def checked(text: str) -> str:
        answer = model.ask({"text": "Ada, 36"}, {CHECK: text})
        try:
            return str(await answer)
        except OutputError as error:
            return f"refused: {error}"
        finally:
            assert answer.metrics == {CHECKED: True}

    assert await checked('{\n  "age": 36.50,\n  "name": "Ada"\n}') == '{"name": "Ada", "age": 36.50}'
    assert (
        await checked('{"name": "Ada"')
        == "refused: the answer is not JSON: Expecting ',' delimiter: line 1 column 15 (char 14)"
    )
    wrong = await checked('{"name": "Ada", "age": "old"}')
    assert (
        wrong.startswith("refused: the model cannot write this answer: after ") and "does not allow '\"old\"}'" in wrong
    )
    assert "twice" in await checked('{"name": "Ada", "name": "Ida", "age": 1}')
    with pytest.raises(InputError, match=r"^text: is blank"):
        await model.ask({"text": " "}, {CHECK: '{"name": "Ada", "age": 1}'})
    model.close()
    gc.unfreeze()


async def test_the_confidence_of_each_field_is_told_where_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake engine is the less sure the more tokens the grammar allows."""
    model = await Model.open(folder)
    writes(model, '{"n": 12}')
    assert "confidence" not in (await model.answer(text="twelve")).metrics
    model.close()
    monkeypatch.setenv("CONFIDENCE", "1")
    model = await Model.open(folder)
    writes(model, '{"n": 12}')
    answer = await model.answer(text="twelve")
    found = answer.metrics["confidence"]
    assert 0.9 < answer.probabilities["/n"] < answer.probabilities[""] < 1
    assert found["fields"] == {pointer: round(one, 3) for pointer, one in answer.probabilities.items()}
    assert (found["lowest"], found["calibrated"]) == (found["fields"]["/n"], False)
    model.close()


async def test_a_calibration_beside_the_weights_says_what_a_probability_means(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFIDENCE", "1")
    calibration = Calibration(answers=20, fields=40, points=((0.5, 0.7, 20),))
    calibration_path(folder).write_text(calibration.model_dump_json())
    model = await Model.open(folder)
    writes(model, '{"n": 12}')
    found = (await model.answer(text="twelve")).metrics["confidence"]
    assert found == {"fields": {"": 0.7, "/n": 0.7}, "lowest": 0.7, "doubtful_below": 0.8, "calibrated": True}
    model.close()


async def test_an_answer_that_the_task_writes_in_another_form_has_no_confidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model writes a Python dict in quotes, and callers get JSON: no field is in both."""
    given = make_tiny_weights(tmp_path, surface="python-repr")
    for name, value in {**given, "ENGINE": "fake", "CONFIDENCE": "1"}.items():
        monkeypatch.setenv(name, value)
    model = await Model.open(Path(given["WEIGHTS_DIR"]))
    answer = await model.answer(nlq="count by a", cols="a, b")
    assert json.loads(str(answer)) and "confidence" not in answer.metrics
    model.close()
