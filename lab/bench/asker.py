"""Turns questions into requests of a checkpoint's task, and replies into a form that can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.bench.protocol import Ask, Reply
from serving.constraints import LarkConstraint
from serving.grammar import check_constraint
from serving.text import Tokenizer
from serving.types import FinishReason
from tasks.errors import TaskError
from tasks.evaluation.json_answers import canonical
from tasks.honeycomb.canonical import comparison_key
from tasks.honeycomb.query import parse_query
from tasks.task import create_task, task_name

Inputs = Mapping[str, Any]  # of one prediction, by name of predict's parameters


class Asker:
    """Prepares requests with a checkpoint's task: every engine gets the same prompt and the same constraint.

    Args:
        weights: folder with task.json and the tokenizer.

    Raises:
        TaskFileError: task.json is missing or wrong.
    """

    def __init__(self, weights: Path) -> None:
        self.task_name = task_name(weights)
        self._tokenizer = Tokenizer.from_dir(weights)
        self._task = create_task(weights, self._tokenizer)

    def ask(self, key: str, inputs: Inputs, max_tokens: int, *, as_lark: bool = False) -> Ask:
        """The greedy request for one question.

        Args:
            key: its name within its batch.
            inputs: the question.
            max_tokens: limit of the answer's tokens, if the task's own is not lower.
            as_lark: write the constraint as a grammar, for an engine whose environment cannot.

        Raises:
            InputError: the task refuses an input.
        """
        prompt = self._task.prepare(inputs)
        constraint = prompt.constraint
        if as_lark and constraint is not None:
            constraint = LarkConstraint(check_constraint(constraint))
        return Ask(key, prompt.token_ids, min(max_tokens, prompt.sampling.max_tokens), constraint=constraint)

    def asks(self, questions: Sequence[Inputs], max_tokens: int, *, as_lark: bool = False) -> tuple[Ask, ...]:
        """Requests for several questions, with their indices as keys."""
        return tuple(self.ask(str(i), inputs, max_tokens, as_lark=as_lark) for i, inputs in enumerate(questions))

    def free(self, key: str, text: str, num_tokens: int) -> Ask:
        """A request to continue a text by so many tokens, without a grammar and without an end."""
        return Ask(key, tuple(self._tokenizer.encode(text)), num_tokens, min_tokens=num_tokens)

    def meaning(self, inputs: Inputs, reply: Reply) -> str | None:
        """A text that is equal for answers with the same meaning; None if the task would return an error."""
        if reply.error is not None:
            return None
        reader = self._task.prepare(inputs).reader
        try:
            return self.final_meaning(reader.push(reply.text) + reader.finish(FinishReason(reply.finish)))
        except TaskError:
            return None

    def final_meaning(self, text: str) -> str:
        """A text that is equal for answers with the same meaning, of an answer as predict returns it.

        Raises:
            TaskError: it is no valid answer.
        """
        if self.task_name == "honeycomb":
            return comparison_key(parse_query(text, None))
        try:
            return canonical(json.loads(text))
        except ValueError:
            return text
