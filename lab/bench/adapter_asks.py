"""Requests to adapters: the questions beside each, in its own task's prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lab.bench.constraint_json import to_json
from lab.bench.protocol import Ask, Reply
from lab.bench.questions import QuestionError
from serving.adapters.registry import AdapterEntry
from serving.text import Tokenizer
from tasks.task import create_task

QUESTIONS: Final = "questions.jsonl"
HELD_OUT: Final = "held_out.jsonl"


@dataclass(frozen=True)
class AdapterQuestions:
    """The requests of one adapter, without keys.

    Args:
        entry: of the list.
        asks: different questions.
        held_out: questions with right answers.
        answers: of `held_out`, as JSON values.
    """

    entry: AdapterEntry
    asks: tuple[Ask, ...]
    held_out: tuple[Ask, ...]
    answers: tuple[Any, ...]


def read_questions(entries: Mapping[str, AdapterEntry], base: Path) -> list[AdapterQuestions]:
    """The requests of all adapters of a list.

    Raises:
        QuestionError: an adapter has no questions or no folder.
        TaskError: a task or a question is wrong.
    """
    tokenizer = Tokenizer.from_dir(base)
    return [_read(entry, base, tokenizer) for entry in entries.values()]


def copies(questions: Sequence[AdapterQuestions], count: int) -> list[str]:
    """Names of `count` adapters: each in turn, under other names from the second time on."""
    names = [one.entry.name for one in questions]
    return [names[i % len(names)] + (f"-{i // len(names)}" if i >= len(names) else "") for i in range(count)]


def write_copies(questions: Sequence[AdapterQuestions], count: int, path: Path) -> Path:
    """Write the list of adapters that has the names of `copies`."""
    entries = [one.entry for one in questions]
    listed = [
        {"name": name, "source": str(entry.source), "max_rank": entry.max_rank}
        | ({} if entry.task is None else {"task": str(entry.task.resolve())})
        for name, entry in zip(copies(questions, count), _cycle(entries, count), strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"adapters": listed}, indent=1), encoding="utf-8")  # JSON is YAML
    return path


def mixed(questions: Sequence[AdapterQuestions], names: Sequence[str], count: int, first: int = 0) -> tuple[Ask, ...]:
    """`count` requests to adapters in turn. If there are twice or four times as many names, the questions are the same.

    Args:
        questions: of the different adapters.
        names: of `copies`, from the first on.
        count: number of requests.
        first: number of the first request, for other questions.
    """
    found = []
    for i in range(first, first + count):
        one = questions[i % len(names) % len(questions)]
        ask = one.asks[i // len(questions) % len(one.asks)]
        found.append(replace(ask, key=str(i), adapter=names[i % len(names)]))
    return tuple(found)


def num_right(replies: Sequence[Reply], answers: Sequence[Any]) -> int:
    """How many replies are exactly the right JSON."""
    return sum(_value(reply) == answer for reply, answer in zip(replies, answers, strict=True))


def _value(reply: Reply) -> Any:
    try:
        return json.loads(reply.text)
    except ValueError:
        return None


def _cycle(entries: Sequence[AdapterEntry], count: int) -> list[AdapterEntry]:
    return [entries[i % len(entries)] for i in range(count)]


def _read(entry: AdapterEntry, base: Path, tokenizer: Tokenizer) -> AdapterQuestions:
    if not isinstance(entry.source, Path):
        raise QuestionError(f"adapter {entry.name!r} is no folder; list folders with {QUESTIONS} and {HELD_OUT}")
    task = create_task(entry.task or base, tokenizer)
    found: dict[str, list[Ask]] = {}
    answers: list[Any] = []
    for file in (QUESTIONS, HELD_OUT):
        path = entry.source / file
        if not path.is_file():
            raise QuestionError(f'{path} is missing; write lines of {{"input": …, "output": …}}')
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            given = record["input"]
            prompt = task.prepare(given if isinstance(given, dict) else {"text": given})
            constraint = None if prompt.constraint is None else to_json(prompt.constraint)
            found.setdefault(file, []).append(Ask("", prompt.token_ids, prompt.sampling.max_tokens, constraint))
            if file == HELD_OUT:
                answers.append(record["output"])
    held_out = tuple(replace(ask, key=str(i), adapter=entry.name) for i, ask in enumerate(found[HELD_OUT]))
    return AdapterQuestions(entry, tuple(found[QUESTIONS]), held_out, tuple(answers))
