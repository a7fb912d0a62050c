"""The forms in which models write an answer, as parts of a grammar; `tasks.honeycomb.literals` parses them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tasks.honeycomb.options import Surface

MAX_STRING = 256  # characters of a filter's value; an escape counts as one

# As json.dumps writes them: control characters are escaped, in the short form if there is one.
_JSON_CHARACTER = r'[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[01][0-9a-f]'
# As repr writes them. No escape can make an unpaired surrogate.
_PYTHON_ESCAPE = (
    r"\\[\\nrt]|\\x[0-9a-f]{2}|\\u(?:[0-9a-ce-f][0-9a-f]{3}|d[0-7][0-9a-f]{2})"
    r"|\\U000(?:[1-9a-f][0-9a-f]{4})|\\U0010[0-9a-f]{4}"
)
_IN_SINGLE_QUOTES = rf"[^'\\\x00-\x1f]|\\'|{_PYTHON_ESCAPE}"
_IN_DOUBLE_QUOTES = rf'[^"\\\x00-\x1f]|{_PYTHON_ESCAPE}'


@dataclass(frozen=True)
class Writing:
    """The syntax of one surface; all fields but the first two and `empty_lists` are Lark expressions."""

    quote: Callable[[str], str]
    quotes: Mapping[str, Callable[[str], str]]  # quotation mark: how a text is escaped between two of them
    string: str
    booleans: tuple[str, str]
    before: str
    after: str
    empty_lists: bool  # whether lists may be empty: models not trained on canonical queries write such keys


def _json_quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _in_json(text: str) -> str:
    return _json_quote(text)[1:-1]


def _in_single_quotes(text: str) -> str:
    return "".join("\\'" if c == "'" else repr(c)[1:-1] for c in text)


def _in_double_quotes(text: str) -> str:
    return "".join(r"\x22" if c == '"' else repr(c)[1:-1] for c in text)


WRITINGS: Final[dict[Surface, Writing]] = {
    "json": Writing(
        quote=_json_quote,
        quotes={'"': _in_json},
        string=f'/"(?:{_JSON_CHARACTER}){{0,{MAX_STRING}}}"/',
        booleans=("true", "false"),
        before="",
        after="",
        empty_lists=False,
    ),
    "python-repr": Writing(
        quote=repr,
        quotes={"'": _in_single_quotes, '"': _in_double_quotes},
        string=(f"/'(?:{_IN_SINGLE_QUOTES}){{0,{MAX_STRING}}}'/ | /\"(?:{_IN_DOUBLE_QUOTES}){{0,{MAX_STRING}}}\"/"),
        booleans=("True", "False"),
        before=r'/[ \n]{0,2}"/',
        after=r'"\""',
        empty_lists=True,
    ),
}


def as_written(canonical: str, surface: Surface) -> str:
    """The canonical JSON of a query in the form in which a model writes."""
    return canonical if surface == "json" else f'"{json.loads(canonical)!r}"'
