"""Writes the examples of each part as scripts/train_adapter reads them, and cases for scripts/prepare."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from pipeline.answer_format.errors import ExamplesError
from pipeline.train.example_files import MAX_REPORTED, Example, ExampleFiles, Part
from pipeline.train.split import Split
from pipeline.weights.atomic import partial_file

CASES_FILE: Final = "cases.jsonl"
_NUM_CASES: Final = 128
_MAX_REFUSED: Final = 0.1  # of the answers; with more, the schema and the examples do not belong together


@dataclass(frozen=True, slots=True)
class Line:
    """An example as it is written.

    Args:
        inputs: the case's input.
        output: JSON text.
        was_reordered: whether the output had its keys in another order.
        fault: what the schema does not allow in it; then it is left out.
    """

    inputs: Any
    output: str
    was_reordered: bool = False
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Args:
        counts: the number of examples of each part.
        reordered: answers whose keys had another order.
        left_out: answers that the schema does not allow.
        faults: of the first of these, each with its place.
    """

    counts: dict[Part, int]
    reordered: int
    left_out: int
    faults: tuple[str, ...]


def write_parts(files: ExampleFiles, split: Split, folder: Path, line_of: Callable[[Example], Line]) -> Written:
    """Write train.jsonl, validation.jsonl, test.jsonl and the cases; after an error none of them is there.

    Parts that were drawn are shuffled, as files are often sorted. Those that have their own file keep its order, and
    training examples are shuffled when they are trained on.

    Raises:
        ExamplesError: the schema does not allow the answers of many examples, or of all in a part.
    """
    counts: Counter[Part] = Counter()
    reordered, left_out, faults = 0, 0, list[str]()
    cases = _cases(split)
    drawn: list[tuple[int, int, Part, str]] = []  # order, index, part, line: of parts that are shuffled
    case_lines: dict[int, str] = {}
    with ExitStack() as stack:
        out = {part: _open(stack, folder / f"{part}.jsonl") for part in Part}
        case_file = _open(stack, folder / CASES_FILE)
        for index, (example, part) in enumerate(zip(files, split.parts, strict=True)):
            if part is None:
                continue
            line = line_of(example)
            if line.fault is not None:
                left_out += 1
                faults += [f"{example.place}: {line.fault}"][: MAX_REPORTED - len(faults)]
                continue
            counts[part] += 1
            reordered += line.was_reordered
            fields = {"input": json.dumps(line.inputs, ensure_ascii=False), "output": line.output}
            if example.category is not None:
                fields["category"] = json.dumps(example.category, ensure_ascii=False)
            text = "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}\n"
            if index in cases:
                case_lines[index] = text
            if part is Part.TRAIN or part in files.parts:
                out[part].write(text)
            else:
                drawn.append((split.order[index], index, part, text))
        for _, _, part, text in sorted(drawn):
            out[part].write(text)
        case_file.writelines(case_lines[index] for index in cases if index in case_lines)
        if left_out > _MAX_REFUSED * (left_out + counts.total()) or not all(counts[part] for part in Part):
            raise ExamplesError(
                f"the schema does not allow {left_out:,} of {left_out + counts.total():,} answers; mend it or the "
                "examples\n" + "\n".join(faults)
            )
    return Written({part: counts[part] for part in Part}, reordered, left_out, tuple(faults))


def _cases(split: Split) -> dict[int, None]:
    """The indices of examples for the cases: of validation, then of training, in random order."""
    chosen: list[int] = []
    for part in (Part.VALIDATION, Part.TRAIN):
        indices = (index for index, of in enumerate(split.parts) if of is part)
        chosen += heapq.nsmallest(_NUM_CASES - len(chosen), indices, key=lambda index: (split.order[index], index))
    return dict.fromkeys(chosen)


def _open(stack: ExitStack, path: Path) -> TextIO:
    partial = stack.enter_context(partial_file(path))
    return stack.enter_context(partial.open("w", encoding="utf-8", newline="\n"))
