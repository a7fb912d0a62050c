"""Reads examples of a task from JSONL, CSV or Parquet, one at a time, so that memory does not grow with their number.

The files are read anew in each pass. The first pass, `survey`, finds the lines that cannot be used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pipeline.answer_format.errors import ExamplesError
from pipeline.batch.errors import BatchError
from pipeline.batch.table import ENDINGS, Table
from tasks.json_text import WrittenFloat, write_answer

MAX_REPORTED: Final = 10  # lines that one error names
# Fields of inputs whose text becomes a default where it is the same in all examples.
INSTRUCTIONS: Final = ("system_prompt", "instruction")
_MAX_DEPTH: Final = 60  # grammars allow some 100 levels of nesting
_EXPECTED: Final = (
    'a line is {"input": text or object, "output": text or object}, {"prompt", "completion"}, '
    '{"instruction", "output"}, or {"messages"}, of which the last is the answer'
)


class Part(StrEnum):
    """What an example is used for."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Example:
    """An input and the right output.

    Args:
        place: file and line, for messages.
        part: of the file that it is in, where there is a file for each part; else None.
        input: a text, or a text, number, list or object for each field.
        value: the output where it is an object or the JSON text of one; else None.
        text: the output where it is written as a text, also as JSON text; else None.
        category: that results are shown by.
        unused: names of further fields of the line.
    """

    place: str
    part: Part | None
    input: str | dict[str, Any]
    value: dict[str, Any] | None
    text: str | None
    category: str | None = None
    unused: tuple[str, ...] = ()

    @property
    def output_text(self) -> str:
        """The output as a text, for tasks whose answers are texts."""
        return write_answer(self.value) if self.text is None else self.text

    @property
    def input_text(self) -> str:
        """All that the input says, as one text."""
        if isinstance(self.input, str):
            return self.input
        return "\n".join(f"{name}: {field_text(self.input[name])}" for name in sorted(self.input))


class ExampleFiles:
    """The examples of a JSONL, CSV or Parquet file, or of a folder of such files: train, perhaps validation and test.

    A line is an object of input and output, or one of the forms that other trainers take: OpenAI's messages, prompt and
    completion (each a text or messages), or Alpaca's instruction, input and output.

    Raises:
        ExamplesError: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._files: dict[Path, Part | None] = {path: None}
        if path.is_dir():
            paths = {path / f"{part}{ending}": part for part in Part for ending in ENDINGS}
            self._files = {file: part for file, part in paths.items() if file.is_file()}
            if Part.TRAIN not in self._files.values():
                raise ExamplesError(f"{path} has no train.jsonl; give a file of examples, or put it there")
        elif not path.is_file():
            raise ExamplesError(f"{path} does not exist; give a JSONL, CSV or Parquet file of examples: {_EXPECTED}")

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(self._files)

    @property
    def parts(self) -> frozenset[Part]:
        """The parts that have a file of their own; none where there is one file."""
        return frozenset(part for part in self._files.values() if part is not None)

    def __iter__(self) -> Iterator[Example]:
        """The examples in the order of the files, one in memory.

        Raises:
            ExamplesError: a line cannot be used.
        """
        for item in self.lines():
            if isinstance(item, str):
                raise ExamplesError(item)
            yield item

    def lines(self) -> Iterator[Example | str]:
        """The example of each line that is not blank, or what is wrong with the line."""
        for file, part in self._files.items():
            for place, line in _lines(file):
                try:
                    yield _example(place, part, line)
                except _LineError as error:
                    yield f"{place}: {error}"


def _lines(file: Path) -> Iterator[tuple[str, bytes]]:
    """The place and the JSON of each example. The rows of a table are numbered from 1, without the header.

    Raises:
        BatchError: a table cannot be read.
    """
    if file.suffix in ENDINGS and file.suffix != ".jsonl":
        for row in Table(file).rows():
            if row.problem is not None:
                raise BatchError(row.problem)
            yield f"{file.name}, row {row.number + 1}", json.dumps(row.values).encode()
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{file.name}:{number}", line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def refuse(problems: list[str], count: int) -> ExamplesError:
    """The error that names several lines.

    Args:
        problems: of the first lines, each with its place.
        count: of all such lines.
    """
    more = f"\nand {count - len(problems):,} lines more" if count > len(problems) else ""
    lines = "one line" if count == 1 else f"{count:,} lines"
    return ExamplesError(f"{lines} cannot be used; {_EXPECTED}\n" + "\n".join(problems) + more)


def field_text(value: Any) -> str:
    """A field of an input as the text that the prompt has: texts as they are, nothing for null, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _LineError(Exception):
    """A line cannot be used; the message names the field."""


def _example(place: str, part: Part | None, line: bytes) -> Example:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise _LineError(f"not UTF-8 at byte {error.start + 1} of the line; save the file as UTF-8") from error
    record = _parse(text, "the line is")
    if not isinstance(record, dict):
        hint = "; write each of its examples on a line of its own" if isinstance(record, list) else ""
        raise _LineError(f"a {_kind(record)}, not an object{hint}")
    given, output, used = _fields(record)
    if not isinstance(given, str | dict):
        raise _LineError(f"input is a {_kind(given)}; give a text or an object")
    blank = not given.strip() if isinstance(given, str) else not any(field_text(v).strip() for v in given.values())
    if blank:
        raise _LineError("input is blank")
    if not isinstance(output, str | dict):
        raise _LineError(f'output is a {_kind(output)}; give a text or an object, such as {{"answer": …}}')
    if isinstance(output, str) and not output.strip():
        raise _LineError("output is blank")
    value, written = (_object_in(output), output) if isinstance(output, str) else (output, None)
    category = record.get("category")
    category = category if isinstance(category, str) else None
    unused = record.keys() - used - ({"category"} if category is not None else set())
    example = Example(place, part, given, value, written, category, tuple(name for name in record if name in unused))
    if "\\u" in text:
        _refuse_half_characters(example)
    return example


def _fields(record: dict[str, Any]) -> tuple[Any, Any, set[str]]:
    """The input and the output of a line in any of its forms, and the names of the fields that have them."""
    match record:
        case {"instruction": told, "input": str() | None as given, "output": output}:  # Alpaca's
            return {"instruction": told, "input": given}, output, {"instruction", "input", "output"}
        case {"input": given, "output": output}:
            return given, output, {"input", "output"}
        case {"instruction": told, "output": output}:
            return {"instruction": told}, output, {"instruction", "output"}
        case {"prompt": [*asked], "completion": [*answers]}:
            return *_conversation([*asked, *answers]), {"prompt", "completion"}
        case {"prompt": given, "completion": output}:
            return given, output, {"prompt", "completion"}
        case {"messages": [*messages]}:
            return *_conversation(messages), {"messages"}
    missing = "output" if "input" in record else "input"
    raise _LineError(f"{missing} is missing; the line has {', '.join(record)[:80] or 'nothing'}")


def _conversation(messages: list[Any]) -> tuple[dict[str, Any], str]:
    """The inputs of the chat task, by their names, and the answer, which is the last message."""
    for number, message in enumerate(messages, 1):
        if not (isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))):
            raise _LineError(
                f'message {number} is not {{"role": text, "content": text}}, the only form that training takes'
            )
    match messages:
        case [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]:
            return {"prompt": prompt}, answer
        case [
            {"role": "system" | "developer", "content": system},
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": answer},
        ]:
            return {"system_prompt": system, "prompt": prompt}, answer
        case [_, *_, {"role": "assistant", "content": answer}]:
            return {"messages": messages[:-1]}, answer
    raise _LineError("messages must end with the assistant's answer, and have a message before it")


def _parse(text: str, subject: str) -> Any:
    try:
        found = json.loads(
            text, object_pairs_hook=_without_duplicates, parse_float=_finite, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise _LineError(f"{subject} not JSON: {error.msg} (character {error.pos + 1})") from error
    except ValueError as error:
        raise _LineError(f"{subject} not usable JSON: {error}") from error
    except RecursionError as error:
        raise _LineError(f"{subject} nested too deeply; the limit is {_MAX_DEPTH} levels") from error
    if text.count("{") + text.count("[") > _MAX_DEPTH and _depth(found) > _MAX_DEPTH:
        raise _LineError(f"{subject} nested too deeply; the limit is {_MAX_DEPTH} levels")
    return found


def json_fault(output: str) -> str | None:
    """Why an output that begins as an object is not JSON; None for other outputs."""
    if not output.lstrip().startswith("{"):
        return None
    try:
        _parse(output, "output is")
    except _LineError as error:
        return str(error)
    return None


def _object_in(output: str) -> dict[str, Any] | None:
    """The object that a text is JSON of; None for other texts."""
    if not output.lstrip().startswith("{"):
        return None
    try:
        found: dict[str, Any] = _parse(output, "output is")
    except _LineError:
        return None
    return found


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level := [part for one in level for part in _parts(one)]:
        depth += 1
    return depth


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:80]!r} is there twice in one object")
    return found


def _finite(text: str) -> WrittenFloat:
    if not math.isfinite(number := WrittenFloat(text)):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_half_characters(example: Example) -> None:
    for name, value in (("input", example.input), ("output", example.value or example.text)):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise _LineError(f"{name} has half a surrogate pair (U+{half:04X}); write valid Unicode") from error


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {list: "list", str: "text", type(None): "null"}.get(type(value), "number")
