"""Writes the grammar of answers that are a text, calls of functions, or both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from serving.constraints import CALL, CallFormat, CallsConstraint


def calls_grammar(constraint: CallsConstraint, arguments: Sequence[str], text: str | None = None) -> str:
    """The grammar in llguidance's dialect of Lark.

    A text never has the beginning of a call, so that the two can be told apart. All but the choice between a text and a
    call, the choice of a function, and its arguments is forced.

    Args:
        constraint: the constraint.
        arguments: for each function the JSON schema of its arguments as llguidance reads it.
        text: the JSON schema of a text, if it has one.
    """
    written = constraint.format
    several = written.between is not None and not constraint.is_single
    more = f" ({_parts(written.between or '', written)} call)*" if several else ""
    calls = f"call{more} {_parts(written.closing, written)}"
    opening = _parts(written.marker + written.opening, written)
    if text is not None:
        lines = [f"start: json | {opening} {calls}", f"json: %json {text}"]
    elif _is_token(written.marker, written) or not written.marker:
        lines = [f"start: TEXT? | {'TEXT?' if written.marker else ''} {opening} {calls}", _free_text(written)]
    else:  # a lazy lexeme ends with the marker
        lines = [f"start: TEXT? | begin {_parts(written.opening, written)} {calls}", _free_text(written)]
        lines.append(f"begin[lazy]: /(?s:.*){_escaped(written.marker)}/")
    lines.append("call: " + " | ".join(f"call{number}" for number in range(len(arguments))))
    for number, ((name, _), schema) in enumerate(zip(constraint.functions, arguments, strict=True)):
        head = _parts(json.dumps(name, ensure_ascii=False)[1:-1] + written.middle, written)
        lines.append(f"call{number}: {head} %json {schema}")
    return "\n".join(["%llguidance {}", *lines])


def _free_text(written: CallFormat) -> str:
    """The lexeme of a text, which has no beginning of a call."""
    shown = written.shown()
    refused = [f"(?s:.*){_escaped(CALL)}(?s:.*)"]
    if shown.marker and shown.marker != CALL:
        refused.append(f"(?s:.*){_escaped(shown.marker)}(?s:.*)")
    elif not shown.marker:
        anywhere = "(?s:.*)" if written.marker else ""
        refused.append(f"{anywhere}{_escaped(shown.opening.strip())}(?s:.*)")
    return "TEXT: /(?s:.+)/" + "".join(f" & ~/{pattern}/" for pattern in refused)


def _is_token(word: str, written: CallFormat) -> bool:
    return any(word == known for known, _, _ in written.tokens)


def _parts(text: str, written: CallFormat) -> str:
    return " ".join(_split(text, written))


def _split(text: str, written: CallFormat) -> Iterator[str]:
    """The text as strings of Lark, its tokens by their ids."""
    ids = {word: token_id for word, token_id, _ in written.tokens}
    pattern = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    for piece in re.split(f"({pattern})", text) if ids else [text]:
        if piece in ids:
            yield f"<[{ids[piece]}]>"
        elif piece:
            yield json.dumps(piece, ensure_ascii=False)


def _escaped(text: str) -> str:
    """The text as a regular expression between slashes."""
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)
