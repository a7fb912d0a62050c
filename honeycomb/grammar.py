r"""The grammar that an answer must match, in llguidance's Lark dialect.

Owns: the text of the grammar for given columns and a surface. Knows nothing of the engine that
obeys it, nor of tokens.

Top-level keys come in any order and at most once: `entry::_` carries a bit for each key used, and
a key may come only while its bit is clear (llguidance's parametric rules). White space is exact,
column names are exactly those given, and every list and string is bounded: most tokens are forced,
and no answer runs for ever. Inside a clause the column may come before the op or after it.

What it cannot see is whether an order or having matches a calculation, and how times compare;
`honeycomb.repair` mends just these.

    build_grammar(("name", "duration_ms"), "json")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from honeycomb import ops
from honeycomb.errors import InputError
from honeycomb.profile import Surface
from honeycomb.surface import WRITINGS, Writing

MAX_VALUES = 50  # of one `in` list

_LISTS: Final = {  # rule: its items and how many; under Honeycomb's 100, a model that loops must end
    "columns": ("COLUMN", 20),
    "calculations": ("calculation", 20),
    "filters": ("filter", 30),
    "orders": ("order", 10),
    "havings": ("having", 10),
}
_ENTRIES: Final = {  # key: the rule of its value, in the order of their bits
    "breakdowns": "columns",
    "calculations": "calculations",
    "filters": "filters",
    "filter_combination": "COMBINATION",
    "orders": "orders",
    "havings": "havings",
    "limit": "LIMIT",
    "time_range": "SECONDS",
    "start_time": "EPOCH",
    "end_time": "EPOCH",
    "granularity": "SECONDS",
    "compare_time_offset_seconds": "OFFSET",
}
_TIMES: Final = ("time_range", "start_time", "end_time")  # any two of them
# Behind the point a float has up to 20 digits where Python writes no exponent: three zeros and 17.
_NUMBERS: Final = r"""
LIMIT: /[1-9][0-9]{0,2}|1000/
SECONDS: /[1-9][0-9]{0,8}/
EPOCH: /[1-9][0-9]{0,10}/
NUMBER: /-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,20})?(?:e[+-][0-9]{2})?/
"""


def build_grammar(columns: Sequence[str], surface: Surface) -> str:
    """Lark text that every answer for these columns matches.

    Raises:
        InputError: no columns are given.
    """
    if not columns:
        raise InputError("cols", "the list is empty", "give at least one column name")
    writing = WRITINGS[surface]
    return "\n".join(
        [
            f"start: {writing.before} object {writing.after}",
            *_top_level(writing),
            *(_list(writing, name, item, most) for name, (item, most) in _LISTS.items()),
            *_clauses(writing),
            *_words(writing, columns),
            _NUMBERS,
        ]
    )


def _top_level(writing: Writing) -> list[str]:
    """Each key once, in any order; of the three times, two."""
    bits = {key: bit for bit, key in enumerate(_ENTRIES)}
    entries = []
    for key, value in _ENTRIES.items():
        condition = f"bit_clear({bits[key]})"
        if key in _TIMES:
            one, two = (bits[other] for other in _TIMES if other != key)
            condition = f"and({condition}, or(bit_clear({one}), bit_clear({two})))"
        entries.append(f"{_key(writing, '', key)} {value} rest::set_bit({bits[key]}) %if {condition}")
    most = len(_ENTRIES) - 1  # a comma after the last possible key would lead nowhere
    more = f"bit_count_lt([0:{len(_ENTRIES)}], {most})"
    return [
        'object: "{" entry::0x0',
        "entry::_ : " + "\n | ".join(entries),
        f'rest::_ : "}}" | ", " entry::_ %if {more}',
    ]


def _list(writing: Writing, name: str, item: str, most: int) -> str:
    items = f'{item} (", " {item}){{0,{most - 1}}}'
    return f'{name}: "[" ({items}){"?" if writing.empty_lists else ""} "]"'


def _clauses(writing: Writing) -> list[str]:
    """Op and column go together: COUNT has none."""
    opening = partial(_key, writing, "{")
    then = partial(_key, writing, ", ")

    def call(op_key: str, column_op: str) -> str:
        """An op with its column, in either order."""
        op_first = f"{opening(op_key)} (PLAIN_OP | {column_op} {then('column')} COLUMN)"
        return f"{op_first} | {opening('column')} COLUMN {then(op_key)} {column_op}"

    comparison = f"{then('op')} COMPARISON {then('value')} NUMBER"
    return [
        f'calculation: ({call("op", "COLUMN_OP")}) "}}"',
        f'order: ({call("op", "SORTABLE_OP")} | {opening("column")} COLUMN) {then("order")} DIRECTION "}}"',
        f'having: ({call("calculate_op", "SORTABLE_OP")}) {comparison} "}}"',
        f'filter: ({_filter(opening("column"), opening("op"), then)}) "}}"',
        *_values(writing),
    ]


def _filter(column_first: str, op_first: str, then: Callable[[str], str]) -> str:
    """The op decides what the value is, so it comes before the value."""
    kinds = {"COMPARISON": "scalar", "STRING_OP": "STRING", "MEMBERSHIP": "values"}
    values = {"EXISTENCE": ""} | {op: f" {then('value')} {value}" for op, value in kinds.items()}
    after_column = " | ".join(f"{op}{value}" for op, value in values.items())
    before_column = " | ".join(f"{op} {then('column')} COLUMN{value}" for op, value in values.items())
    return f"{column_first} COLUMN {then('op')} ({after_column}) | {op_first} ({before_column})"


def _values(writing: Writing) -> list[str]:
    yes, no = writing.booleans
    return [
        f'scalar: STRING | NUMBER | "{yes}" | "{no}"',
        f'values: "[" scalar (", " scalar){{0,{MAX_VALUES - 1}}} "]"',
        f"STRING: {writing.string}",
    ]


def _words(writing: Writing, columns: Sequence[str]) -> list[str]:
    sortable = [op for op in ops.OPS_WITH_COLUMN if op != ops.NOT_SORTABLE]
    words: dict[str, Iterable[str]] = {
        "COLUMN": columns,
        "PLAIN_OP": ops.OPS_WITHOUT_COLUMN,
        "COLUMN_OP": ops.OPS_WITH_COLUMN,
        "SORTABLE_OP": sortable,
        "COMPARISON": ops.COMPARISON_OPS,
        "STRING_OP": ops.STRING_OPS,
        "EXISTENCE": ops.EXISTENCE_OPS,
        "MEMBERSHIP": ops.MEMBERSHIP_OPS,
        "COMBINATION": ops.COMBINATIONS,
        "DIRECTION": ops.DIRECTIONS,
    }
    quoted = [f"{name}: {_any(map(writing.quote, values))}" for name, values in words.items()]
    return [*quoted, f"OFFSET: {_any(map(str, ops.COMPARE_OFFSETS))}"]


def _key(writing: Writing, before: str, key: str) -> str:
    return _literal(f"{before}{writing.quote(key)}: ")


def _any(texts: Iterable[str]) -> str:
    return " | ".join(map(_literal, texts))


def _literal(text: str) -> str:
    """A Lark string is a JSON string; in ASCII, because its lexer refuses some raw characters."""
    return json.dumps(text)
