"""Parse the column names that a query may use: a Python list, a JSON list, or names separated by commas.

Names with commas, quotes or brackets need a list.

    parse_columns("['duration_ms', 'name']") == parse_columns("duration_ms, name")
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Iterator
from itertools import islice

from tasks.errors import InputError
from tasks.honeycomb.errors import shorten
from tasks.json_text import parse_json

MAX_TEXT_BYTES = 64 * 1024
MAX_COLUMNS = 1_000
MAX_NAME_CHARACTERS = 255

_LIMITS = f"1 to {MAX_COLUMNS:,} names of at most {MAX_NAME_CHARACTERS} characters, 64 KiB in all"
_REMEDY = f"give a list such as ['name', 'duration_ms'] ({_LIMITS})"
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})  # control characters, surrogates, line separators

# One element of a Python list and its separator. Takes linear time: the alternatives for a character are disjoint.
_LIST_ITEM = re.compile(
    r"""\s*[uU]?(?P<literal>'(?:[^'\\\n]|\\[^\n])*'|"(?:[^"\\\n]|\\[^\n])*")\s*(?P<next>,\s*\]?|\])"""
)


def parse_columns(text: str) -> tuple[str, ...]:
    """Column names in the given order, without surrounding white space and duplicates.

    Raises:
        InputError: `cols` has none of the three forms, is empty, or exceeds a limit.
    """
    if len(text) > MAX_TEXT_BYTES or len(text.encode(errors="surrogatepass")) > MAX_TEXT_BYTES:
        raise _error(f"over 64 KiB of text ({len(text):,} characters)")
    text = text.strip()
    if not text:
        raise _error("is empty")
    items = _list_items(text) if text.startswith("[") else _separated_items(text)
    names = tuple(dict.fromkeys(_checked(n, item) for n, item in enumerate(_capped(items), start=1)))
    if not names:
        raise _error("the list is empty")
    return names


def _error(problem: str) -> InputError:
    return InputError("cols", problem, _REMEDY)


def _capped(items: Iterator[object]) -> Iterator[object]:
    """The items up to the limit, so that malicious text costs no more than a long list."""
    yield from islice(items, MAX_COLUMNS)
    if next(items, None) is not None:
        raise _error(f"over {MAX_COLUMNS:,} names")


def _checked(number: int, item: object) -> str:
    if not isinstance(item, str):
        raise _error(f"item {number} is {shorten(item)}, not a string")
    name = item.strip()
    if not name:
        raise _error(f"name {number} is empty")
    if len(name) > MAX_NAME_CHARACTERS:
        raise _error(f"name {number} has {len(name):,} characters, the limit is {MAX_NAME_CHARACTERS}")
    if not name.isprintable() and any(unicodedata.category(c) in _FORBIDDEN_CATEGORIES for c in name):
        raise _error(f"name {number}, {shorten(name)}, has a control character or line break")
    return name


def _separated_items(text: str) -> Iterator[object]:
    if text[0] in "({" or any(character in text for character in "'\"[]"):
        raise _error("neither a list nor names separated by commas")
    yield from text.removesuffix(",").split(",")


def _list_items(text: str) -> Iterator[object]:
    try:
        items = parse_json(text)
    except ValueError:
        return _python_items(text)
    return iter(items)  # the text begins with "[", so it is a list


def _python_items(text: str) -> Iterator[object]:
    """The elements of a Python list of strings, without `literal_eval` of the whole, which fails on deep nesting."""
    if text.endswith("]") and not text[1:-1].strip():
        return
    position, number, following = 1, 1, ","
    while not following.endswith("]"):
        match = _LIST_ITEM.match(text, position)
        if match is None:
            excerpt = shorten(text[position : position + 40].strip())
            raise _error(f"item {number} does not parse as a quoted string in a list: {excerpt}")
        yield _string(match["literal"], number)
        position, following, number = match.end(), match["next"], number + 1
    if position != len(text):
        raise _error(f"text after the list: {shorten(text[position : position + 40])}")


def _string(literal: str, number: int) -> str:
    if "\\" not in literal:
        return literal[1:-1]
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError) as error:
        raise _error(f"item {number} has a broken escape: {shorten(literal)}") from error
