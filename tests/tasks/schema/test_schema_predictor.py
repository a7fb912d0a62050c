"""A package of a schema task, set up and called as Cog does."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cog
import numpy as np
import pytest
from cog import ConcatenateIterator, Input
from safetensors.numpy import save_file

from lab.endurance.own_weights import lock_text
from serving.engines.fake.engine import FakeEngine
from serving.errors import ContextLengthError, InvalidRequestError
from serving.predictor import TaskPredictor
from tasks.errors import TaskFileError
from tests.tasks.schema.schemas import INVOICE
from tests.tasks.schema.task_files import write_task

ANSWER = '{"vendor": "Café", "total": 12.5, "paid": true, "lines": [{"sku": "AB12", "count": 2}]}'


class InvoicePredictor(TaskPredictor):
    """The class that a package's predict.py has."""

    @cog.streaming
    async def predict(self, text: str = Input(), max_tokens: int = Input(default=1024)) -> ConcatenateIterator[str]:
        """The invoice in pieces."""
        return self.answer(text=text, max_tokens=max_tokens)

    def record_metric(self, key: str, value: Any, mode: str = "replace") -> None:
        """Cog's part."""

    async def chunks(self, **inputs: Any) -> list[str]:
        """All that is streamed."""
        generator = await self.predict(**{"text": "You owe us.", "max_tokens": 1024, **inputs})
        return await asyncio.to_thread(list, generator)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., InvoicePredictor]]:
    """Set up a predictor of a schema whose model writes `answer`."""
    made: list[InvoicePredictor] = []

    def make(schema: Any = INVOICE, answer: str = ANSWER, **engine_options: Any) -> InvoicePredictor:
        weights = write_task(tmp_path / "weights", schema)
        save_file({"unused": np.zeros(1, np.float32)}, weights / "model.safetensors")
        (tmp_path / "weights.lock").write_text(lock_text(weights))
        monkeypatch.setenv("WEIGHTS_DIR", str(weights))
        monkeypatch.setenv("WEIGHTS_LOCK", str(tmp_path / "weights.lock"))
        monkeypatch.setenv("ENGINE", "fake")
        predictor = InvoicePredictor()
        predictor.setup()
        made.append(predictor)
        predictor.model.engine.close()
        predictor.model.engine = FakeEngine(predictor.model.tokenizer, answer=lambda _: answer, **engine_options)
        return predictor

    yield make
    for predictor in made:
        predictor.model.engine.close()
    gc.unfreeze()


async def test_the_answer_is_streamed(make: Callable[..., InvoicePredictor]) -> None:
    chunks = await make().chunks()
    assert "".join(chunks) == ANSWER
    assert len(chunks) > 10


async def test_the_answer_is_an_invoice_whatever_the_model_prefers(
    make: Callable[..., InvoicePredictor],
) -> None:
    text = "".join(await make(answer="Sure! Here is the invoice: {}").chunks())
    assert json.loads(text).keys() == {"vendor", "total", "paid", "lines"}


async def test_the_error_of_a_truncated_answer_names_the_limit(make: Callable[..., InvoicePredictor]) -> None:
    predictor = make()
    with pytest.raises(InvalidRequestError, match="max_tokens: the answer was not complete after 9 tokens"):
        await predictor.chunks(max_tokens=9)
    with pytest.raises(ContextLengthError, match="text: the model's context of 80 tokens is full"):
        await make(max_model_len=80).chunks()


@pytest.mark.parametrize("schema", [{}, {"title": "Anything"}])
def test_a_schema_that_cannot_be_followed_fails_setup(make: Callable[..., InvoicePredictor], schema: Any) -> None:
    with pytest.raises(TaskFileError, match=r"task\.json: schema"):
        make(schema)
