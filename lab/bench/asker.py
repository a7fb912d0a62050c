"""Turn questions into requests of a checkpoint's task, and replies into a form that can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.bench.constraint_json import to_json
from lab.bench.gbnf import build_gbnf
from lab.bench.protocol import Ask, Dialect, Reply
from lab.bench.questions import Question
from serving.constraints import LarkConstraint
from serving.text import Tokenizer
from serving.types import FinishReason
from tasks.errors import TaskError
from tasks.evaluation.json_answers import canonical
from tasks.honeycomb.canonical import comparison_key
from tasks.honeycomb.columns import parse_columns
from tasks.honeycomb.query import parse_query
from tasks.honeycomb.task import HoneycombTask
from tasks.task import Prompt, create_task, task_name


class Asker:
    """Prepares requests with a checkpoint's task: every engine gets the same prompt, and a grammar in its own dialect.

    Args:
        weights: folder with task.json and the tokenizer.

    Raises:
        TaskFileError: task.json is missing or wrong.
    """

    def __init__(self, weights: Path) -> None:
        self.task_name = task_name(weights)
        self._tokenizer = Tokenizer.from_dir(weights)
        self._task = create_task(weights, self._tokenizer)

    @property
    def has_gbnf(self) -> bool:
        """Whether the task's grammar exists in llama.cpp's dialect: only Honeycomb's, for models that write JSON."""
        return isinstance(self._task, HoneycombTask) and self._task.options.surface == "json"

    def ask(self, key: str, question: Question, dialect: Dialect, max_tokens: int) -> Ask:
        """The greedy request for one question.

        Raises:
            InputError: the task refuses an input.
        """
        prompt = self._task.prepare(question.inputs)
        limit = min(max_tokens, prompt.sampling.max_tokens)
        return Ask(key, prompt.token_ids, limit, self._constraint(question, prompt, dialect))

    def asks(self, questions: Sequence[Question], dialect: Dialect, max_tokens: int) -> tuple[Ask, ...]:
        """Requests for several questions, with their indices as keys."""
        return tuple(self.ask(str(i), q, dialect, max_tokens) for i, q in enumerate(questions))

    def free(self, key: str, text: str, max_tokens: int) -> Ask:
        """A request to continue a text, without a grammar."""
        return Ask(key, tuple(self._tokenizer.encode(text)), max_tokens)

    def meaning(self, question: Question, reply: Reply) -> str | None:
        """A text that is equal for answers with the same meaning; None if the task would return an error."""
        if reply.error is not None:
            return None
        reader = self._task.prepare(question.inputs).reader
        try:
            return self.final_meaning(reader.push(reply.text) + reader.finish(FinishReason(reply.finish)))
        except TaskError:
            return None

    def final_meaning(self, text: str) -> str:
        """The same for an answer as predict returns it.

        Raises:
            TaskError: it is none.
        """
        return comparison_key(parse_query(text, None)) if self.task_name == "honeycomb" else _json_or_text(text)

    def _constraint(self, question: Question, prompt: Prompt, dialect: Dialect) -> Mapping[str, Any] | None:
        if prompt.constraint is None or dialect is Dialect.NONE:
            return None
        if dialect is Dialect.GBNF:
            return to_json(LarkConstraint(self._gbnf(question)))  # the llama.cpp engine passes the text on unchanged
        return to_json(prompt.constraint)

    def _gbnf(self, question: Question) -> str:
        assert isinstance(self._task, HoneycombTask), "only peers of tasks that have GBNF are given it"
        return build_gbnf(parse_columns(question.inputs["cols"]), self._task.options.surface)


def _json_or_text(text: str) -> str:
    try:
        return canonical(json.loads(text))
    except ValueError:
        return text
