"""Answers from an engine, the way predict.py gets them.

Owns: prompt, grammar, generation and mending of each case, many at a time. Knows nothing of scores.

    async for answer in answer_all(source, cases, concurrency=32): ...
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from honeycomb.errors import HoneycombError
from honeycomb.grammar import build_grammar
from honeycomb.profile import Profile
from honeycomb.prompt import build_prompt, check_nlq
from honeycomb.query import read_answer
from scripts.evaluation.cases import Case
from serving.engine import Engine
from serving.errors import InvalidRequestError
from serving.text import Tokenizer
from serving.types import GenerationRequest, RequestMetrics, SamplingParams


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for the case on a line of the file. `raw` is what the model itself wrote."""

    line: int
    text: str
    raw: str
    seconds: float
    output_tokens: int = 0
    model_passes: int = 0


class EngineSource:
    """An engine with the prompt and the grammar of its weights.

    Args:
        use_grammar: as predict does: the answer is constrained, then mended. Without it the answer
            is what the model wrote.
    """

    def __init__(self, engine: Engine, weights: Path, use_grammar: bool, max_tokens: int = 512) -> None:
        self.engine = engine
        self._profile = Profile.load(weights / "profile.json")
        self._tokenizer = Tokenizer.from_dir(weights)
        self._use_grammar, self._max_tokens = use_grammar, max_tokens

    async def answer(self, case: Case) -> Answer:
        """One answer. What the request does wrong is its answer too: an error in its text."""
        start = time.perf_counter()
        raw, metrics = "", None
        try:
            async with aclosing(self.engine.generate(self._request(case))) as outputs:
                async for output in outputs:
                    raw += output.text
                    metrics = output.metrics or metrics
            text = read_answer(raw, case.columns).text if self._use_grammar else raw
        except (InvalidRequestError, HoneycombError) as error:
            text = raw or f"{type(error).__name__}: {error}"
        return _answer(case, text, raw, time.perf_counter() - start, metrics)

    def _request(self, case: Case) -> GenerationRequest:
        prompt = build_prompt(check_nlq(case.nlq), case.columns, self._profile.prompt)
        return GenerationRequest(
            request_id=f"line-{case.line}",
            prompt_token_ids=tuple(self._tokenizer.encode(prompt)),
            sampling=SamplingParams(max_tokens=self._max_tokens),
            grammar=build_grammar(case.columns, self._profile.surface) if self._use_grammar else None,
        )


def _answer(case: Case, text: str, raw: str, seconds: float, metrics: RequestMetrics | None) -> Answer:
    if metrics is None:
        return Answer(case.line, text, raw, seconds)
    return Answer(case.line, text, raw, seconds, metrics.output_token_count, metrics.model_passes)


async def answer_all(source: EngineSource, cases: Sequence[Case], concurrency: int) -> AsyncIterator[Answer]:
    """Answers as they come, at most `concurrency` requests in flight."""
    waiting = iter(cases)
    running: set[asyncio.Task[Answer]] = set()
    try:
        while True:
            while len(running) < concurrency and (case := next(waiting, None)) is not None:
                running.add(asyncio.create_task(source.answer(case)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
