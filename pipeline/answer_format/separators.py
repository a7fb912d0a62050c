"""Finds the separators of JSON texts, as regular expressions for a task file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.answer_format.errors import ExamplesError
from pipeline.answer_format.example_answers import Example

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\s+')


@dataclass(frozen=True, slots=True)
class Separators:
    """The separators of JSON texts, as regular expressions.

    Args:
        item: between items and between properties; None if no text has two of either.
        key: between a property's name and its value; None if no text has a property.
        notes: messages about separators that differ between the texts.
    """

    item: str | None
    key: str | None
    notes: tuple[str, ...]


def find_separators(examples: Iterable[Example]) -> Separators:
    """Count the separators of all examples whose text is known.

    Raises:
        ExamplesError: a text has white space that is not part of a separator, as in pretty-printed JSON.
    """
    item: Counter[str] = Counter()
    key: Counter[str] = Counter()
    for example in examples:
        if example.text is not None:
            _count(example.place, example.text, item, key)
    notes = [_note(name, counts) for name, counts in (("items", item), ("keys", key)) if len(counts) > 1]
    return Separators(_pattern(item), _pattern(key), tuple(notes))


def _count(place: str, text: str, item: Counter[str], key: Counter[str]) -> None:
    if text != text.strip():
        raise ExamplesError(
            f"{place}: the answer {text[:40]!r}… has white space around its JSON; a constrained answer has none. "
            "Put what comes before it at the end of the prompt, and train on answers without it"
        )
    tokens = _TOKEN.findall(text)
    blanks = [
        "",
        *(token if token.isspace() else "" for token in tokens),
        "",
    ]  # blanks[i + 1]: tokens[i] if it is white space
    for index, token in enumerate(tokens):
        around = blanks[index] + token + blanks[index + 2]
        if token == ",":
            item[around] += 1
        elif token == ":":
            key[around] += 1
        elif (token in ("{", "[") and blanks[index + 2]) or (token in ("}", "]") and blanks[index]):
            raise ExamplesError(_pretty_printed(place, token, text))
        if token in (",", ":") and "\n" in around:
            raise ExamplesError(_pretty_printed(place, token, text))


def _pretty_printed(place: str, token: str, text: str) -> str:
    return (
        f"{place}: the answer {text[:40]!r}… is pretty-printed (white space at {token!r}); "
        "a constrained answer is one line. Train on answers written by json.dumps(answer, ensure_ascii=False)"
    )


def _pattern(counts: Counter[str]) -> str | None:
    """A pattern for all separators that were seen; their characters need no escaping in a regular expression."""
    if not counts:
        return None
    seen = sorted(counts, key=len)
    if len(seen) == 1:
        return seen[0]
    return f"{seen[0]}[ ]?" if seen == [seen[0], f"{seen[0]} "] else f"({'|'.join(seen)})"


def _note(name: str, counts: Counter[str]) -> str:
    found_counts = ", ".join(f"{separator!r} {count} times" for separator, count in counts.most_common())
    return f"{name} are separated in different ways: {found_counts}; the model may choose"
