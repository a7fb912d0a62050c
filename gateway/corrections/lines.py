"""Corrections as lines of JSON, in which people and training exchange them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from gateway.corrections.correction import Correction, Kind, State
from gateway.predictions.prediction import adapter_of, new_id, now

EXPECTED = 'a line is {"input": {…}, "output": …, "given": …, "note": "…", "kind": "correction", "state": "accepted"}'


class LineError(Exception):
    """A line cannot be read; the message names it."""


class CorrectionLine(BaseModel):
    """One line; only `input` must be there, and `output` unless it is a report.

    Args:
        input: the inputs by names of predict's parameters.
        output: the right answer, as text or as a JSON value.
        given: the answer that the model gave.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: dict[str, JsonValue]
    output: JsonValue = None
    given: JsonValue = None
    note: str = ""
    kind: Kind = Kind.CORRECTION
    state: State = State.PROPOSED

    def correction(self) -> Correction:
        """A new correction of this line.

        Raises:
            ValueError: the kind needs an answer, or has none.
        """
        if (self.output is None) != (self.kind is Kind.REPORT):
            raise ValueError(f"output: a {self.kind} has {'no answer' if self.kind is Kind.REPORT else 'one'}")
        return Correction(
            id=new_id(),
            kind=self.kind,
            input=self.input,
            given=None if self.given is None else as_text(self.given),
            wanted=None if self.output is None else as_text(self.output),
            note=self.note,
            created_at=now(),
            state=self.state,
            adapter=adapter_of(self.input),
        )


def read_lines(
    lines: Iterable[str], *, state: State | None = None, unsaid: State = State.PROPOSED
) -> Iterator[Correction]:
    """New corrections, one of each line that is not blank.

    Args:
        lines: the lines of a file.
        state: the state of all; None for that of each line.
        unsaid: the state of lines that name none.

    Raises:
        LineError: a line is not as `EXPECTED` says.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = CorrectionLine.model_validate_json(line)
            found = replace(read.correction(), state=read.state if "state" in read.model_fields_set else unsaid)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise LineError(f"line {number}: {f'{place}: ' if place else ''}{first['msg']}; {EXPECTED}") from error
        except ValueError as error:
            raise LineError(f"line {number}: {error}") from error
        yield found if state is None else replace(found, state=state)


def line_of(correction: Correction) -> str:
    """The line of a correction, without its end."""
    content = {
        "input": dict(correction.input),
        "output": correction.wanted,
        "given": correction.given,
        "note": correction.note,
        "kind": correction.kind,
        "state": correction.state,
    }
    return json.dumps(content, ensure_ascii=False)


def as_text(value: JsonValue) -> str:
    """An answer as it is kept: a text, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
