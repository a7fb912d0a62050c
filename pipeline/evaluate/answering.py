"""Asks a model the cases of a file, with the grammar and the checks of its task or without, and keeps the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.in_flight import blocking, in_flight
from serving.config import Settings
from serving.errors import InvalidRequestError
from serving.model import ADAPTER, Model
from serving.types import FinishReason
from tasks.errors import TaskError
from tasks.evaluation.cases import Case


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """The answer to a case.

    Args:
        line: the line of the case in its file.
        text: the text that a caller gets; where the task refuses the model's text, that text, or else the reason.
        raw: the model's text.
        seconds: how long the answer took.
        output_tokens: number of tokens in the model's text.
        error: the task's reason why there is no answer, if any.
        probabilities: of the fields of the answer, see `tasks.confidence`; empty where the engine does not know them.
    """

    line: int
    text: str
    raw: str
    seconds: float
    output_tokens: int = 0
    model_passes: int = 0
    error: str | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)


def ask_model(
    settings: Settings, cases: Sequence[Case], usual_inputs: Mapping[str, Any], *, use_grammar: bool
) -> Iterator[CaseAnswer]:
    """Yield answers in the order in which they finish; the model is loaded before the first and closed at the end.

    Args:
        settings: the settings of the model, whose weights need no lock.
        cases: what is asked, as many at once as the engine computes.
        usual_inputs: inputs that a case has unless it says otherwise.
        use_grammar: whether answers are constrained and checked as predict does; otherwise they are what the model
            wrote.
    """
    model = Model.load(settings, is_locked=False)

    async def answer(case: Case) -> CaseAnswer:
        return await _ask(model, case.line, {**usual_inputs, **case.inputs}, use_grammar)

    try:
        yield from blocking(in_flight(answer, cases, settings.max_num_seqs))
    finally:
        model.close()


async def _ask(model: Model, line: int, inputs: Mapping[str, Any], use_grammar: bool) -> CaseAnswer:
    start = time.perf_counter()
    answer, error = None, None
    try:
        prompt = await asyncio.to_thread(model.prepare, inputs)
        if not use_grammar:
            prompt = replace(prompt, constraint=None, reader=_PlainReader())
        answer = model.answer_prompt(prompt, inputs.get(ADAPTER))
        await answer
    except (InvalidRequestError, TaskError) as refusal:
        error = f"{type(refusal).__name__}: {refusal}"
    seconds = time.perf_counter() - start
    if answer is None:
        return CaseAnswer(line, str(error), "", seconds, error=error)
    text = answer.text if error is None else answer.raw or error
    tokens, passes = (answer.metrics.get(name, 0) for name in ("output_token_count", "model_passes"))
    return CaseAnswer(line, text, answer.raw, seconds, tokens, passes, error, answer.probabilities)


class _PlainReader:
    """A `tasks.task.Reader` that shows what the model wrote."""

    notes = ()

    def push(self, text: str) -> str:
        """See `Reader.push`."""
        return text

    def finish(self, reason: FinishReason) -> str:
        """See `Reader.finish`."""
        return ""


class AnswerFile:
    """The answers so far, as JSON lines beside the result file, so that an interrupted run can be resumed.

    Args:
        results: the result file; without one, answers are only in memory.
        resume: whether to keep the answers of an earlier run; otherwise they are deleted.
    """

    def __init__(self, results: Path | None, resume: bool) -> None:
        self.answers: dict[int, CaseAnswer] = {}
        self._path = results and results.with_name(results.name + ".answers.jsonl")
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            self._path.unlink(missing_ok=True)
        elif self._path.is_file():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                answer = CaseAnswer(**json.loads(line))
                self.answers[answer.line] = answer

    def add(self, answer: CaseAnswer) -> None:
        """Add an answer."""
        self.answers[answer.line] = answer
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")

    def remove(self) -> None:
        """Delete the file, after the results have been written."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
