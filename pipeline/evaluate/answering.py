"""Ask a model the cases of a file, with the grammar and the checks of its task or without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from pipeline.in_flight import in_flight
from serving.config import Settings
from serving.errors import InvalidRequestError
from serving.model import Model
from serving.types import FinishReason
from tasks.errors import TaskError


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a case.

    Args:
        line: of the case in its file.
        text: the text that a caller gets; where the task refuses the model's text, that text, or else the reason.
        raw: the model's text.
        seconds: duration.
        output_tokens: number of tokens in the model's text.
        model_passes: number of forward passes.
        error: the task's reason why there is no answer, if any.
    """

    line: int
    text: str
    raw: str
    seconds: float
    output_tokens: int = 0
    model_passes: int = 0
    error: str | None = None


class Numbered(Protocol):
    """A case, identified by its line in the file."""

    @property
    def line(self) -> int:
        """Line number, from 1."""
        ...


CaseT = TypeVar("CaseT", bound=Numbered)


def ask_model(
    settings: Settings, cases: Sequence[CaseT], inputs_of: Callable[[CaseT], Mapping[str, Any]], *, use_grammar: bool
) -> Iterator[Answer]:
    """Yield answers in the order in which they finish; the model is loaded before the first and closed at the end.

    Args:
        settings: of the model, whose weights need no lock.
        cases: to ask, as many at once as the engine computes.
        inputs_of: the inputs of a case by name.
        use_grammar: whether answers are constrained and checked as predict does; otherwise they are what the model
            wrote.
    """
    model = Model.load(settings, is_locked=False)

    async def answer(case: CaseT) -> Answer:
        return await _ask(model, case.line, inputs_of(case), use_grammar)

    try:
        yield from _blocking(in_flight(answer, cases, settings.max_num_seqs))
    finally:
        model.close()


async def _ask(model: Model, line: int, inputs: Mapping[str, Any], use_grammar: bool) -> Answer:
    start = time.perf_counter()
    answer, error = None, None
    try:
        prompt = await asyncio.to_thread(model.prepare, inputs)
        if not use_grammar:
            prompt = replace(prompt, constraint=None, reader=_PlainReader())
        answer = model.answer_prompt(prompt)
        await answer
    except (InvalidRequestError, TaskError) as refusal:
        error = f"{type(refusal).__name__}: {refusal}"
    seconds = time.perf_counter() - start
    if answer is None:
        return Answer(line, str(error), "", seconds, error=error)
    text = answer.text if error is None else answer.raw or error
    tokens, passes = (answer.metrics.get(name, 0) for name in ("output_token_count", "model_passes"))
    return Answer(line, text, answer.raw, seconds, tokens, passes, error)


class _PlainReader:
    """Shows what the model wrote; see `tasks.task.Reader`."""

    notes = ()

    def push(self, text: str) -> str:
        """See `Reader.push`."""
        return text

    def finish(self, reason: FinishReason) -> str:
        """See `Reader.finish`."""
        return ""


def _blocking(answers: AsyncIterator[Answer]) -> Iterator[Answer]:
    """A synchronous iterator over an asynchronous one; its event loop runs only while an item is awaited."""
    with asyncio.Runner() as runner:

        async def next_answer() -> Answer | None:
            return await anext(answers, None)

        while (answer := runner.run(next_answer())) is not None:
            yield answer
