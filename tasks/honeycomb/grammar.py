r"""Build the grammar that an answer must match, in llguidance's Lark dialect.

Top-level keys may come in any order, each at most once: `entry::_` carries a bit for each used key, and a key is
allowed only while its bit is clear (llguidance's parametric rules). White space is fixed, column names are exactly the
given ones, and every list and string is bounded; so most tokens are forced, and no answer is infinite. Inside a clause
the column may come before or after the op.

The grammar cannot express whether an order or having matches a calculation, nor how times compare;
`tasks.honeycomb.query` corrects these.

    build_grammar(("name", "duration_ms"), "json")
    answer_grammar(HoneycombOptions.load(folder), "slow names", ("name", "duration_ms"))  # as the task file says
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from tasks.errors import InputError
from tasks.honeycomb import ops
from tasks.honeycomb.options import HoneycombOptions, Surface
from tasks.honeycomb.question_durations import Durations, question_durations
from tasks.honeycomb.question_numbers import question_numbers
from tasks.honeycomb.question_times import question_times
from tasks.honeycomb.surface import WRITINGS, Writing

# A value never begins or ends inside a word, except before the s of a plural: "GETs", "mutations". Letters beyond
# Armenian are chunks by themselves, because scripts without spaces are among them.
_LETTER: Final = r"[0-9A-Za-z\u00aa-\u058f]"
_CHUNK: Final = re.compile(rf"(?:{_LETTER}{{2,}}[^\W_sS]|[A-Z]+)(?=s\b)|{_LETTER}+|.", re.DOTALL)
_METHOD: Final = re.compile(r"\b(get|head|post|put|patch|delete|options)s?\b", re.IGNORECASE)


def copied_string(question: str, writing: Writing) -> str:
    """The lines of Lark's terminal STRING: a quoted part of the question, as `writing` escapes it, or an empty one.

    An HTTP method is written in upper case, as columns have it, however the question writes it.
    """
    chunks = _CHUNK.findall(question)
    methods = sorted({method.upper() for method in _METHOD.findall(question)})
    choices, terminals = [], []
    for number, (quote, escape) in enumerate(writing.quotes.items()):
        parts = json.dumps({"substring_chunks": [escape(chunk) for chunk in chunks]})
        terminals.append(f"IN_QUOTES_{number}: %regex {parts}")
        choices.append(f"{json.dumps(quote)} IN_QUOTES_{number} {json.dumps(quote)}")
        choices += [json.dumps(f"{quote}{method}{quote}") for method in methods]
    return "\n".join([f"STRING: {' | '.join(choices)}", *terminals])


_UNIX: Final = "[1-9][0-9]{0,10}"
_SECONDS: Final = "[1-9][0-9]{0,8}"
_MAX_PAIRS: Final = 256  # pairs of a start and an end, whose distance is a range too
_ANY: Final = {  # terminal: the pattern of all its numbers
    "LIMIT": "[1-9][0-9]{0,2}|1000",
    "START": _UNIX,
    "END": _UNIX,
    "RANGE": _SECONDS,
    "STEP": _SECONDS,
    # Without an exponent Python writes up to 20 digits after the point: three zeros and 17 digits.
    "NUMBER": r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,20})?(?:e[+-][0-9]{2})?",
}


def number_terminals(question: str | None, durations: Durations) -> list[str]:
    """The Lark terminals of limits, times, lengths of time and numbers that are compared with: lines `NAME: /pattern/`.

    Without a question any number is allowed; LIMIT is never limited.
    """
    found = dict[str, Iterable[float]]()
    if question is not None:
        starts, ends = question_times(question, durations.ranges)
        found = {"START": starts, "END": ends, "STEP": durations.steps, "NUMBER": question_numbers(question)}
        if durations.ranges and len(starts) * len(ends) <= _MAX_PAIRS:
            between = {end - start for start in starts for end in ends if end > start}
            found["RANGE"] = sorted({*durations.ranges, *between})
    return [f"{name}: /{'|'.join(map(_number, found.get(name, ()))) or pattern}/" for name, pattern in _ANY.items()]


def _number(value: float) -> str:
    """A pattern of a number as Python writes it in JSON."""
    return re.escape(repr(int(value) if value == int(value) else value))


MAX_VALUES = 50  # values in one `in` list

_LISTS: Final = {  # rule: item and maximum length, below Honeycomb's 100, so that a model that repeats itself ends soon
    "columns": ("COLUMN", 20),
    "calculations": ("calculation", 20),
    "filters": ("filter", 30),
    "orders": ("order", 10),
    "havings": ("having", 10),
}
_ENTRIES: Final = {  # key: rule of its value, in the order of the bits
    "breakdowns": "columns",
    "calculations": "calculations",
    "filters": "filters",
    "filter_combination": "COMBINATION",
    "orders": "orders",
    "havings": "havings",
    "limit": "LIMIT",
    "time_range": "RANGE",
    "start_time": "START",
    "end_time": "END",
    "granularity": "STEP",
    "compare_time_offset_seconds": "OFFSET",
}
_TIMES: Final = ("time_range", "start_time", "end_time")  # at most two of them


def answer_grammar(options: HoneycombOptions, question: str, columns: Sequence[str]) -> str:
    """The Lark grammar of a model's answers to a question.

    Raises:
        InputError: there are no columns.
    """
    return build_grammar(columns, options.surface, question if options.values == "copied" else None)


def build_grammar(columns: Sequence[str], surface: Surface, question: str | None = None) -> str:
    """The Lark grammar of all answers for these columns, in the form `surface` in which the model writes.

    Strings, numbers and times must be what the question can mean; without one, any are allowed.

    Raises:
        InputError: there are no columns.
    """
    if not columns:
        raise InputError("cols", "the list is empty", "give at least one column name")
    writing = WRITINGS[surface]
    durations = question_durations(question) if question is not None else Durations((), ())
    return "\n".join(
        [
            f"start: {writing.before} object {writing.after}",
            *_top_level(writing, durations),
            *(_list(writing, name, item, max_items) for name, (item, max_items) in _LISTS.items()),
            *_clauses(writing),
            f"STRING: {writing.string}" if question is None else copied_string(question, writing),
            *_terminals(writing, columns),
            *number_terminals(question, durations),
        ]
    )


def _top_level(writing: Writing, durations: Durations) -> list[str]:
    """The rules of the outermost object: each key once, in any order, and at most two of the three times.

    There is no granularity if all lengths of time that the question names can only be ranges: "in the last 5 minutes".
    """
    bits = {key: bit for bit, key in enumerate(_ENTRIES)}
    entries = []
    for key, value in _ENTRIES.items():
        if key == "granularity" and durations.ranges and not durations.steps:
            continue
        condition = f"bit_clear({bits[key]})"
        if key in _TIMES:
            one, two = (bits[other] for other in _TIMES if other != key)
            condition = f"and({condition}, or(bit_clear({one}), bit_clear({two})))"
        entries.append(f"{_key(writing, '', key)} {value} rest::set_bit({bits[key]}) %if {condition}")
    max_entries = len(entries) - 1  # a comma after the last possible key would be a dead end
    more = f"bit_count_lt([0:{len(_ENTRIES)}], {max_entries})"
    return [
        'object: "{" entry::0x0',
        "entry::_ : " + "\n | ".join(entries),
        f'rest::_ : "}}" | ", " entry::_ %if {more}',
    ]


def _list(writing: Writing, name: str, item: str, max_items: int) -> str:
    items = f'{item} (", " {item}){{0,{max_items - 1}}}'
    return f'{name}: "[" ({items}){"?" if writing.empty_lists else ""} "]"'


def _clauses(writing: Writing) -> list[str]:
    """The rules of clauses; whether there is a column depends on the op."""
    opening = partial(_key, writing, "{")
    then = partial(_key, writing, ", ")

    def call(op_key: str, column_op: str) -> str:
        """An op and its column, in either order."""
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
    """The rule of a filter; the op comes before the value, because it determines its type."""
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
    ]


def _terminals(writing: Writing, columns: Sequence[str]) -> list[str]:
    sortable = [op for op in ops.OPS_WITH_COLUMN if op != ops.NOT_SORTABLE]
    strings: dict[str, Iterable[str]] = {
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
    quoted = [f"{name}: {_any(map(writing.quote, values))}" for name, values in strings.items()]
    return [*quoted, f"OFFSET: {_any(map(str, ops.COMPARE_OFFSETS))}"]


def _key(writing: Writing, before: str, key: str) -> str:
    return _literal(f"{before}{writing.quote(key)}: ")


def _any(texts: Iterable[str]) -> str:
    return " | ".join(map(_literal, texts))


def _literal(text: str) -> str:
    """The Lark string of a text: a JSON string in ASCII, because Lark's lexer refuses some raw characters."""
    return json.dumps(text)
