"""The Honeycomb task: from a question and column names to a Honeycomb query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.constraints import LarkConstraint
from serving.text import Tokenizer
from serving.types import FinishReason, SamplingParams
from tasks.honeycomb.columns import parse_columns
from tasks.honeycomb.grammar import answer_grammar
from tasks.honeycomb.live import LiveAnswer
from tasks.honeycomb.options import HoneycombOptions, Surface
from tasks.honeycomb.prompt import DRAFT_MARKERS, build_prompt, check_nlq
from tasks.task import Prompt

DEFAULT_MAX_TOKENS = 512


class HoneycombTask:
    """See `tasks.task.Task` and `MarkedTask`. Inputs: `nlq`, `cols` and `max_tokens`.

    Args:
        options: from task.json.
        tokenizer: of the checkpoint.
    """

    long_inputs = "nlq and cols"
    shorten_hint = "give fewer columns"

    def __init__(self, options: HoneycombOptions, tokenizer: Tokenizer) -> None:
        self.options = options
        self._tokenizer = tokenizer

    def prepare(self, inputs: Mapping[str, Any]) -> Prompt:
        """See `Task.prepare`."""
        question, columns = check_nlq(inputs["nlq"]), parse_columns(inputs["cols"])
        text = build_prompt(question, columns, self.options.prompt)
        return Prompt(
            token_ids=tuple(self._tokenizer.encode(text)),
            # JSON Schema accepts 1.0 as an integer, and Cog passes it on as a float.
            sampling=SamplingParams(max_tokens=int(inputs.get("max_tokens", DEFAULT_MAX_TOKENS))),
            constraint=LarkConstraint(answer_grammar(self.options, question, columns), is_trusted=True),
            reader=QueryReader(columns, self.options.surface),
        )

    def draft_markers(self) -> tuple[str, ...]:
        """See `tasks.task.MarkedTask`."""
        return DRAFT_MARKERS[self.options.prompt]


class QueryReader:
    """See `tasks.task.Reader`.

    Args:
        columns: the names that the query may use.
        surface: the form in which the model writes.
    """

    def __init__(self, columns: Sequence[str], surface: Surface) -> None:
        self._columns = columns
        self._answer = LiveAnswer(surface)

    def push(self, text: str) -> str:
        """See `Reader.push`."""
        return self._answer.push(text)

    def finish(self, reason: FinishReason) -> str:
        """See `Reader.finish`."""
        return self._answer.finish(self._columns)

    @property
    def notes(self) -> tuple[str, ...]:
        """The corrections that were made."""
        return tuple(f"repaired: {repair}" for repair in self._answer.repairs)


def create(folder: Path, tokenizer: Tokenizer) -> HoneycombTask:
    """The task of a checkpoint.

    Raises:
        TaskFileError: its task.json is missing or invalid.
    """
    return HoneycombTask(HoneycombOptions.load(folder), tokenizer)
