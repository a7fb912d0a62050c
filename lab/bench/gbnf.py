r"""Build the grammar of an answer in GBNF, llama.cpp's dialect.

It is as strict as `tasks.honeycomb.grammar`, with three exceptions: keys come in canonical order, because GBNF cannot
count which ones were used; lists and strings have no bound, because it would expand every repetition; and all three
times may come together.

    build_gbnf(("name", "duration_ms"), "json")
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from tasks.honeycomb import ops
from tasks.honeycomb.options import Surface

_ENTRIES = {  # in canonical order
    "breakdowns": "columns",
    "calculations": "calculations",
    "filters": "filters",
    "filter_combination": "combination",
    "orders": "orders",
    "havings": "havings",
    "limit": "limit",
    "time_range": "seconds",
    "start_time": "epoch",
    "end_time": "epoch",
    "granularity": "seconds",
    "compare_time_offset_seconds": "offset",
}
_FIXED = r"""
limit ::= "1000" | [1-9] [0-9]? [0-9]?
seconds ::= [1-9] [0-9]{0,8}
epoch ::= [1-9] [0-9]{0,10}
number ::= "-"? ("0" | [1-9] [0-9]{0,18}) ("." [0-9]{1,20})?
scalar ::= string | number | "true" | "false"
values ::= "[" scalar (", " scalar)* "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\bfnrt] | "\\u00" [01] [0-9a-f])* "\""
"""


class UnsupportedSurfaceError(Exception):
    """The model does not answer in JSON, the only form for which there is a GBNF grammar."""


def build_gbnf(columns: Sequence[str], surface: Surface) -> str:
    """The GBNF grammar of canonical answers for these columns.

    Raises:
        UnsupportedSurfaceError: the model does not answer in JSON.
    """
    if surface != "json":
        raise UnsupportedSurfaceError(f"surface {surface!r}: GBNF grammars exist only for 'json'; leave llama out")
    return "\n".join([*_top_level(), *_clauses(), *_terminals(columns), _FIXED])


def _top_level() -> list[str]:
    """The rules of the outermost object: each key at most once, in order."""
    rules = []
    entries = list(_ENTRIES.items())
    starts = " | ".join(f"{_rule(key)} {_after(i)}" for i, (key, _) in enumerate(entries))
    rules.append(f'root ::= "{{" ({starts}) "}}"')
    for i, (key, value) in enumerate(entries):
        rules.append(f"{_rule(key)} ::= {_key('', key)} {value}")
        further = " | ".join(f"{_rule(k)} {_after(j)}" for j, (k, _) in enumerate(entries) if j > i)
        rules.append(f'{_after(i)} ::= (", " ({further}))?' if further else f'{_after(i)} ::= ""')
    return rules


def _rule(key: str) -> str:
    return "e-" + key.replace("_", "-")


def _after(number: int) -> str:
    return f"after-{number}"


def _clauses() -> list[str]:
    op, column, then_column = _key("{", "op"), _key("{", "column"), _key(", ", "column")
    then_op, then_value = _key(", ", "op"), _key(", ", "value")
    direction = f'{_key(", ", "order")} direction "}}"'
    call = f"(plain-op | sortable-op {then_column} column)"
    by_value = (
        f"existence | comparison {then_value} scalar | string-op {then_value} string | membership {then_value} values"
    )
    return [
        *(
            f'{name} ::= "[" {item} (", " {item})* "]"'
            for name, item in {
                "columns": "column",
                "calculations": "calculation",
                "filters": "filter",
                "orders": "order",
                "havings": "having",
            }.items()
        ),
        f'calculation ::= {op} (plain-op | column-op {then_column} column) "}}"',
        f'filter ::= {column} column {then_op} ({by_value}) "}}"',
        f"order ::= ({op} {call} | {column} column) {direction}",
        f'having ::= {_key("{", "calculate_op")} {call} {then_op} comparison {then_value} number "}}"',
    ]


def _terminals(columns: Sequence[str]) -> list[str]:
    sortable = [op for op in ops.OPS_WITH_COLUMN if op != ops.NOT_SORTABLE]
    words: dict[str, Iterable[str]] = {
        "column": columns,
        "plain-op": ops.OPS_WITHOUT_COLUMN,
        "column-op": ops.OPS_WITH_COLUMN,
        "sortable-op": sortable,
        "comparison": ops.COMPARISON_OPS,
        "string-op": ops.STRING_OPS,
        "existence": ops.EXISTENCE_OPS,
        "membership": ops.MEMBERSHIP_OPS,
        "combination": ops.COMBINATIONS,
        "direction": ops.DIRECTIONS,
    }
    quoted = [f"{name} ::= {_any(map(_quote, values))}" for name, values in words.items()]
    return [*quoted, f"offset ::= {_any(map(str, ops.COMPARE_OFFSETS))}"]


def _any(texts: Iterable[str]) -> str:
    return " | ".join(map(_literal, texts))


def _key(before: str, key: str) -> str:
    return _literal(f"{before}{_quote(key)}: ")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _literal(text: str) -> str:
    r"""GBNF knows the escapes \\, \", \n, \r, \t, \xHH, \uHHHH and \UHHHHHHHH in a literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else _escape(c) for c in escaped) + '"'


def _escape(character: str) -> str:
    return f"\\u{ord(character):04X}" if ord(character) < 0x10000 else f"\\U{ord(character):08X}"
