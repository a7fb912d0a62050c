"""How sure a model is of each field of an answer: the lowest probability among the tokens that wrote the field.

A field is named by its JSON pointer (RFC 6901), such as `/filters/0/value`. An object or list is a field too, for its
own marks: braces or brackets, keys, colons and commas. So a filter that may be missing shows in the list of filters.

    field_probabilities([b'{"a": ', b"1", b"}"], [0.0, -0.7, 0.0])  ->  {"": 1.0, "/a": 0.4966}
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.grammar.schema_tree import escaped
from tasks.errors import TaskFileError
from tasks.json_text import parse_json

WHOLE: Final = ""  # the pointer of a whole answer
DOUBTFUL_BELOW: Final = 0.8  # the share of right fields, and the probability where no share was measured
_PART: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def field_probabilities(tokens: Sequence[bytes], logprobs: Sequence[float]) -> dict[str, float]:
    """The lowest probability of a token of each field, by the field's pointer; a text that is no JSON is one field.

    A token that belongs to several fields, such as `", "`, counts for each of them.

    Args:
        tokens: the bytes of the answer's tokens.
        logprobs: of each token the natural logarithm of its probability: 0 where the grammar allowed no other.
    """
    if len(tokens) != len(logprobs):
        raise ValueError(f"{len(tokens)} tokens have {len(logprobs)} log probabilities; give one for each")
    if not tokens:
        return {}
    text = b"".join(tokens)
    try:
        parse_json(text.decode(), unique_keys=True)
    except ValueError:
        return {WHOLE: math.exp(min(logprobs))}
    ends, end = list[int](), 0
    for token in tokens:
        end += len(token)
        ends.append(end)
    lowest: dict[str, float] = {}
    first = 0  # the token that has the first byte of the part
    for pointer, start, stop in _parts(text):
        while ends[first] <= start:
            first += 1
        last = first
        while ends[last] < stop:
            last += 1
        lowest[pointer] = min(lowest.get(pointer, 0.0), *logprobs[first : last + 1])
    return {pointer: math.exp(logprob) for pointer, logprob in lowest.items()}


def values_by_pointer(value: Any, pointer: str = WHOLE) -> Iterator[tuple[str, Any]]:
    """All values inside a JSON value by their pointers, itself first, and each after what it is in."""
    yield pointer, value
    if isinstance(value, dict):
        for name, part in value.items():
            yield from values_by_pointer(part, child(pointer, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from values_by_pointer(part, child(pointer, index))


def answer_probabilities(tokens: Sequence[bytes], logprobs: Sequence[float], shown: str) -> dict[str, float]:
    """The probabilities of those fields that an answer still has after a task has changed what the model wrote.

    Args:
        tokens, logprobs: what the model wrote, as in `field_probabilities`.
        shown: the task's answer.
    """
    probabilities, written = field_probabilities(tokens, logprobs), b"".join(tokens).decode(errors="replace")
    if written == shown:
        return probabilities
    try:
        before, after = (dict(values_by_pointer(parse_json(text))) for text in (written, shown))
    except ValueError:
        return {WHOLE: min(probabilities.values())} if probabilities else {}
    return {
        pointer: probability
        for pointer, probability in probabilities.items()
        if pointer in after and _own(before[pointer]) == _own(after[pointer])
    }


def _own(value: Any) -> Any:
    """A value without what is in it."""
    return type(value) if isinstance(value, dict | list) else value


def _parts(text: bytes) -> Iterator[tuple[str, int, int]]:
    """The marks and values of a JSON text in order: the pointer of the field, and the first byte and the one behind."""
    inside: list[str] = []  # the pointers of the objects and lists around
    index: list[int | None] = []  # of the list's item; None in an object
    key: str | None = None  # that has been read in the innermost object
    for match in _PART.finditer(text):
        part, (start, stop) = match[0], match.span()
        if part in (b",", b":"):
            yield inside[-1], start, stop
            if part == b",":
                key, count = None, index[-1]
                index[-1] = None if count is None else count + 1
            continue
        if part in (b"}", b"]"):
            yield inside.pop(), start, stop
            index.pop()
            continue
        if inside and index[-1] is None and key is None:
            key = json.loads(part)
            yield inside[-1], start, stop
            continue
        pointer = child(inside[-1], (key or "") if index[-1] is None else index[-1]) if inside else WHOLE
        yield pointer, start, stop
        if part in (b"{", b"["):
            inside.append(pointer)
            index.append(None if part == b"{" else 0)
            key = None


def child(pointer: str, name: str | int) -> str:
    """The pointer of a value in an object or list."""
    return f"{pointer}/{escaped(str(name))}"


class Calibration(BaseModel):
    """How often fields were right on answers that a model had not learned, by their probabilities.

    Args:
        answers: the number of answers that it is from.
        fields: the number of their fields.
        points: (probability, share of right fields, fields) of groups of fields, both first ones ascending. Between
            two points the share is interpolated, and down to 0 below them, so that it tells fields apart there too.
            No point: a probability stands for itself.
        error: the expected calibration error (Naeini et al. 2015) of the probabilities themselves.
        error_left: that of the shares, each measured on the half of the answers that it is not from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    answers: int = Field(0, ge=0)
    fields: int = Field(0, ge=0)
    points: tuple[tuple[float, float, int], ...] = ()
    error: float = 0.0
    error_left: float = 0.0

    @classmethod
    def beside(cls, weights: Path) -> Self:
        """The calibration of a checkpoint; where it has none, that in which probabilities stand for themselves.

        Raises:
            TaskFileError: the file is no calibration.
        """
        path = calibration_path(weights)
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except ValidationError as error:
            raise TaskFileError(f"{path} is no calibration of scripts/train or scripts/improve; delete it") from error

    def share(self, probability: float) -> float:
        """The share of right fields among those of this probability."""
        if not self.points:
            return probability
        at = bisect_left(self.points, probability, key=lambda point: point[0])
        if at == len(self.points):
            return self.points[-1][1]
        left, low, _ = self.points[at - 1] if at else (0.0, 0.0, 0)
        right, high, _ = self.points[at]
        if right == left:
            return high
        return low + (high - low) * (probability - left) / (right - left)

    def metric(self, probabilities: Mapping[str, float]) -> dict[str, Any]:
        """The metric `confidence` of an answer: `fields` by pointer, their `lowest`, and what is `doubtful_below`."""
        shares = {pointer: round(self.share(probability), 3) for pointer, probability in probabilities.items()}
        return {
            "fields": shares,
            "lowest": min(shares.values()),
            "doubtful_below": DOUBTFUL_BELOW,
            "calibrated": bool(self.points),
        }


def calibration_path(weights: Path) -> Path:
    """Where the calibration of a checkpoint is: beside its folder."""
    return weights.with_name(f"{weights.name}.confidence.json")
