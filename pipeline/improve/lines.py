"""Reads corrections and other cases of a task as lines of its case files, with what tells like inputs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from pipeline.train.example_files import field_text
from pipeline.train.split import text_hash
from pipeline.weights.errors import CheckpointError
from serving.errors import InvalidRequestError
from serving.text import Tokenizer
from serving.types import SamplingParams
from tasks.errors import TaskError
from tasks.task import ConventionalTask, CorrectableTask, create_task

_WORD: Final = re.compile(r"\w+")
_NO_CONTENT: Final = {"query", "output", "category", "id", "list"}  # of a line, which say nothing about its input
_SETTINGS: Final = {*(field.name for field in fields(SamplingParams)), "adapter"}  # of a caller, not of the task


@dataclass(frozen=True, slots=True)
class Correction:
    """An answer that a person wanted.

    Args:
        input: the inputs by names of predict's parameters.
        output: the right answer as text.
        is_example: whether it is an answer that the model gave, and that people keep as a good one.
    """

    input: Mapping[str, Any]
    output: str
    is_example: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a case file.

    Args:
        text: the line without its end.
        asked: what was asked, as one text.
        words: the hash of its words, which near-duplicates share.
    """

    text: str
    asked: str
    words: int

    @classmethod
    def of(cls, text: str) -> Line:
        """The line that has this JSON.

        Raises:
            ValueError: it is no object.
        """
        record = json.loads(text)
        if not isinstance(record, dict):
            raise ValueError("not an object")
        asked = input_text(record)
        return cls(text, asked, text_hash(" ".join(_WORD.findall(asked.lower())) or asked))


def input_text(record: Mapping[str, Any]) -> str:
    """What a line of a case file asks, as one text."""
    content = record.get("input", {name: value for name, value in record.items() if name not in _NO_CONTENT})
    if isinstance(content, Mapping):
        return "\n".join(field_text(content[name]) for name in sorted(content))
    return field_text(content)


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a case file that are not blank.

    Raises:
        CheckpointError: a line is no JSON object.
        OSError: the file cannot be read.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield Line.of(line.rstrip("\n"))
                except ValueError as error:
                    raise CheckpointError(f"{path}:{number}: {error}; a line is a JSON object") from error


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Write a case file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line.text}\n" for line in lines), encoding="utf-8")


def as_lines(corrections: Iterable[Correction], weights: Path, say: Callable[[str], None]) -> list[Line]:
    """The lines of corrections, with answers as the model is to learn them; of one input the last one counts.

    Args:
        corrections: in the order in which they were made.
        weights: folder of the checkpoint, whose task checks the answers.
        say: is told which are left out, because they are no answers of the task.

    Raises:
        TaskFileError: the checkpoint has no valid task file.
    """
    task = create_task(weights, Tokenizer.from_dir(weights))
    found: dict[int, Line] = {}
    for number, one in enumerate(corrections, 1):
        inputs = {name: value for name, value in one.input.items() if name not in _SETTINGS and value is not None}
        try:
            task.prepare(inputs)
            output = task.as_written(inputs, one.output) if isinstance(task, CorrectableTask) else one.output
            output = task.as_learned(output) if isinstance(task, ConventionalTask) else output
        except (TaskError, InvalidRequestError, KeyError) as error:
            why = f"the input has no {error}" if isinstance(error, KeyError) else error
            say(f"Correction {number} is left out, because it is none of this task: {why}")
            continue
        line = Line.of(json.dumps({"input": inputs, "output": output}, ensure_ascii=False))
        found.pop(line.words, None)
        found[line.words] = line
    return list(found.values())
