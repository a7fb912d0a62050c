"""Parse the text of an answer, JSON or a Python literal and perhaps in quotes, within limits for malicious text.

read_object(" \\"{'breakdowns': ['name']}\\"")  ->  {"breakdowns": ["name"]}
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from typing import Any

from tasks.honeycomb.errors import QuerySyntaxError, shorten

MAX_ANSWER_BYTES = 64 * 1024
MAX_DEPTH = 8  # a query needs 4
MAX_DIGITS = 40  # digits of an integer; ids have up to 39

_NOT_A_LITERAL = (ValueError, SyntaxError, RecursionError, MemoryError)  # all errors that malicious text can cause


def read_object(text: str) -> dict[str, Any]:
    """The JSON object or Python dict in a text, with or without quotes around it.

    Raises:
        QuerySyntaxError: it is neither, is larger than 64 KiB, or has a key twice.
    """
    if len(text) > MAX_ANSWER_BYTES or len(text.encode(errors="surrogatepass")) > MAX_ANSWER_BYTES:
        raise QuerySyntaxError(f"the answer has {len(text):,} characters, the limit is 64 KiB")
    text = text.strip()
    value = _read_quoted(text) if text[:1] in ('"', "'") else _read(text)
    if not isinstance(value, dict):
        raise QuerySyntaxError(f"the answer is a {type(value).__name__}, not an object: {shorten(text)}")
    return value


def _read_quoted(text: str) -> Any:
    """Read a quoted text: the quotes may simply surround it, or make it an escaped string."""
    try:
        return _read(text[1:-1])
    except QuerySyntaxError:
        string = _read(text)
        if not isinstance(string, str):
            raise
        return _read(string)


def _read(text: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except _NOT_A_LITERAL:
        try:
            value = _evaluate(ast.parse(text.strip(), mode="eval").body, MAX_DEPTH)
        except _NOT_A_LITERAL as error:
            reason = getattr(error, "msg", None) or str(error) or type(error).__name__
            problem = f"the answer is neither JSON nor a Python literal ({shorten(reason)})"
            raise QuerySyntaxError(f"{problem}: {shorten(text)}") from error
    _check(value, MAX_DEPTH)
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _object(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        duplicate, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise QuerySyntaxError(f"the key {shorten(duplicate)} is given twice; give it once")
    return value


def _evaluate(node: ast.expr, depth: int) -> Any:
    """Like ast.literal_eval, without tuples, sets, bytes and arithmetic, and with limited depth."""
    if depth == 0:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    match node:
        case ast.Dict():
            keys = [_evaluate(key, 1) for key in node.keys if key is not None]
            if len(keys) != len(node.values) or not all(isinstance(key, str) for key in keys):
                raise ValueError("a key is not a string")
            return _object(list(zip(keys, (_evaluate(v, depth - 1) for v in node.values), strict=True)))
        case ast.List():
            return [_evaluate(item, depth - 1) for item in node.elts]
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            if not isinstance(value, bool):
                return -value
    raise ValueError(f"{type(node).__name__} is not a literal value")


def _check(value: object, depth: int) -> None:
    """Refuse deep nesting, unpaired surrogates and very long integers, which could not be written again."""
    if depth == 0:
        raise QuerySyntaxError(f"the answer is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise QuerySyntaxError(f"unpaired surrogate in {shorten(value)}")
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        raise QuerySyntaxError(f"an integer has more than {MAX_DIGITS} digits")
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    for part in parts if isinstance(parts, list) else ():
        _check(part, depth - 1)
