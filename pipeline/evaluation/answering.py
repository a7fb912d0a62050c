"""Get answers from an engine in the same way as predict.py."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from serving.constraints import LarkConstraint
from serving.engine import Engine
from serving.errors import InvalidRequestError
from serving.text import Tokenizer
from serving.types import GenerationRequest, RequestMetrics, SamplingParams
from tasks.errors import TaskError
from tasks.honeycomb.grammar import answer_grammar
from tasks.honeycomb.options import HoneycombOptions
from tasks.honeycomb.prompt import build_prompt, check_nlq
from tasks.honeycomb.query import read_answer

CaseT = TypeVar("CaseT", contravariant=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a case.

    Args:
        line: of the case in its file.
        text: the text that a caller gets.
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


class Question(Protocol):
    """A question to the Honeycomb task; `line` in its file identifies it."""

    @property
    def line(self) -> int:
        """Line number, from 1."""
        ...

    @property
    def nlq(self) -> str:
        """The question."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that the query may use."""
        ...


class Source(Protocol[CaseT]):
    """Answers cases."""

    async def answer(self, case: CaseT) -> Answer:
        """Answer one case."""
        ...


class EngineSource:
    """Answers Honeycomb cases with an engine.

    Args:
        engine: generates the answers.
        weights: folder of the checkpoint, with its task file.
        use_grammar: whether to constrain and correct answers, as predict does; otherwise the answer is the model's
            text.
        max_tokens: limit of an answer.
    """

    def __init__(self, engine: Engine, weights: Path, use_grammar: bool, max_tokens: int = 512) -> None:
        self.engine = engine
        self._profile = HoneycombOptions.load(weights)
        self._tokenizer = Tokenizer.from_dir(weights)
        self._use_grammar, self._max_tokens = use_grammar, max_tokens

    async def answer(self, case: Question) -> Answer:
        """Answer one case; of an invalid request or text, the answer is that text or an error."""
        start = time.perf_counter()
        raw, metrics = "", None
        try:
            async with aclosing(self.engine.generate(self._request(case))) as outputs:
                async for output in outputs:
                    raw += output.text
                    metrics = output.metrics or metrics
            text = read_answer(raw, case.columns).text if self._use_grammar else raw
        except (InvalidRequestError, TaskError) as error:
            text = raw or f"{type(error).__name__}: {error}"
        return _answer(case, text, raw, time.perf_counter() - start, metrics)

    def _request(self, case: Question) -> GenerationRequest:
        prompt = build_prompt(check_nlq(case.nlq), case.columns, self._profile.prompt)
        return GenerationRequest(
            request_id=f"line-{case.line}",
            prompt_token_ids=tuple(self._tokenizer.encode(prompt)),
            sampling=SamplingParams(max_tokens=self._max_tokens),
            constraint=LarkConstraint(answer_grammar(self._profile, case.nlq, case.columns), is_trusted=True)
            if self._use_grammar
            else None,
        )


def _answer(case: Question, text: str, raw: str, seconds: float, metrics: RequestMetrics | None) -> Answer:
    if metrics is None:
        return Answer(case.line, text, raw, seconds)
    return Answer(case.line, text, raw, seconds, metrics.output_token_count, metrics.model_passes)
