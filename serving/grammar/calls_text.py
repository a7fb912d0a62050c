"""Writes the grammar of answers that are a text, calls of functions, or both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from serving.constraints import CALL, PLAIN_BEGIN, PLAIN_MIDDLE, CallFormat, CallsConstraint
from serving.grammar.grammar_text import OPTIONS

# Plain calls are written as the model writes JSON: most often with a line for each property.
_LOOSE: Final = {"whitespace_flexible": True, "whitespace_pattern": "[ \\n]{1,20}"}


def calls_grammar(
    constraint: CallsConstraint, arguments: Sequence[str], text: str | None = None, *, is_loose: bool = True
) -> str:
    """The grammar in llguidance's dialect of Lark.

    A text never has the beginning of a call, so that the two can be told apart. All but the choice between a text and a
    call, the choice of a function, and its arguments is forced. Where calls have a marker, a call may also be plain
    JSON, in a code block or not: some models do not write as their templates do.

    Args:
        constraint: the constraint.
        arguments: for each function the JSON schema of its arguments as llguidance reads it.
        text: the JSON schema of a text, if it has one.
        is_loose: whether arguments in plain calls may have blanks and line ends between values.
    """
    written, shown = constraint.format, constraint.format.shown()
    has_plain = bool(shown.marker) and text is None
    loose = "loose" if is_loose else "arguments"
    names = [json.dumps(name, ensure_ascii=False)[1:-1] for name, _ in constraint.functions]
    several = written.between is not None and not constraint.is_single
    lines, start = _free_text(names, written, has_plain=has_plain), "start: text"
    if text is not None:
        lines, start = [f"json: %json {text}"], "start: json"
    elif has_plain:
        lines += [
            f"plain[lazy]: /(?s:.*){PLAIN_BEGIN}/",
            "known: " + " | ".join(f"name{number}" for number in range(len(names))),
            f"middle[lazy]: /{PLAIN_MIDDLE} /",
            "named: " + " | ".join(f"name{number} middle {loose}{number}" for number in range(len(names))),
            rf"NEXT: /[ \n]*\}}(,[ \n]*|\n){PLAIN_BEGIN}/",
            r"END: /[ \n]*\}[ \n]*(\][ \n]*)?(```)?/",
        ]
        start += f" | (plain known?)* plain named{' (NEXT named)*' if several else ''} END"
    if not written.marker:
        begin = ""
    elif _is_token(written.marker, written) or text is not None:
        begin = f"{'' if text is not None else 'text '}{_parts(written.marker, written)}"
    else:  # a lazy lexeme ends with the marker
        begin = "(plain known?)* begin" if has_plain else "begin"
        lines.append(f"begin[lazy]: /(?s:.*){_escaped(written.marker)}/")
    more = f" ({_parts(written.between or '', written)} call)*" if several else ""
    lines += [
        f"{start} | {begin} {_parts(written.opening, written)} call{more} {_parts(written.closing, written)}",
        "call: " + " | ".join(f"call{number}" for number in range(len(names))),
    ]
    for number, (name, schema) in enumerate(zip(names, arguments, strict=True)):
        lines.append(f"call{number}: {_parts(name + written.middle, written)} arguments{number}")
        lines.append(f"arguments{number}: %json {schema}")
        if has_plain:
            lines.append(f'name{number}[lazy]: /{_escaped(name)}"/')
        if has_plain and is_loose:
            lines.append(f"loose{number}: %json {json.dumps(json.loads(schema) | {OPTIONS: _LOOSE})}")
    return "\n".join(["%llguidance {}", *lines])


def _free_text(names: Sequence[str], written: CallFormat, *, has_plain: bool) -> list[str]:
    """The rules of a text, which has no beginning of a call but, where there are plain calls, one with another name."""
    shown = written.shown()
    refused = [f"(?s:.*){_escaped(CALL)}(?s:.*)"]
    if shown.marker and shown.marker != CALL:
        refused.append(f"(?s:.*){_escaped(shown.marker)}(?s:.*)")
    elif not shown.marker:
        anywhere = "(?s:.*)" if written.marker else ""
        refused.append(f"{anywhere}{_escaped(shown.opening.strip())}(?s:.*)")
    if not has_plain:
        return ["text: TEXT?", f"TEXT: {_text(*refused)}"]
    refused.append(f"(?s:.*){PLAIN_BEGIN}(?s:.*)")
    known = f'({"|".join(map(_escaped, names))})"(?s:.*)'
    other = _text(*refused, known, f"{PLAIN_MIDDLE}(?s:.*)")
    return ["text: TEXT? | (plain known?)+ OTHER?", f"TEXT: {_text(*refused)}", f"OTHER: {other}"]


def _text(*refused: str) -> str:
    return "/(?s:.+)/" + "".join(f" & ~/{pattern}/" for pattern in refused)


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
