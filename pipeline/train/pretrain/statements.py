"""Draws questions and the statements of query languages, filters or commands that they ask for."""

from __future__ import annotations

from typing import Final

from pipeline.train.pretrain.words import Words, spell

_OPERATORS: Final = (
    *((words, "=") for words in ("is", "equals", "of", "was", "=", "with")),
    *((words, ">") for words in ("greater than", "more than", "over", "above", "larger than")),
    *((words, "<") for words in ("less than", "under", "below", "smaller than")),
    *((words, ">=") for words in ("at least", "no less than")),
    *(("at most", "<="), ("is not", "!="), ("other than", "!=")),
)
_AGGREGATES: Final = (
    *(("how many", "COUNT"), ("number of", "COUNT"), ("average", "AVG"), ("mean", "AVG"), ("highest", "MAX")),
    *(("largest", "MAX"), ("lowest", "MIN"), ("smallest", "MIN"), ("total", "SUM"), ("sum of", "SUM")),
)


def make_statement(words: Words) -> tuple[str, str, list[str]]:
    """A question, the statement, and the parts of the question that the statement repeats."""
    style = words.choice(("snake", "snake", "plain", "camel"))
    has_capitals, lower, quote = words.chance(0.5), words.chance(0.5), words.choice(("'", '"', '"', ""))
    columns = [words.phrase(1, 2) for _ in range(words.order.randint(2, 4))]
    shown = [column.title() if has_capitals else column for column in columns]
    names = [spell(words.key(column), style) for column in columns]
    conditions: list[tuple[str, str]] = []
    for name, text in zip(names[1:], shown[1:], strict=True):
        said, operator = words.order.choice(_OPERATORS)
        is_text = operator in ("=", "!=") and words.chance(0.75)
        value = words.choice((words.names(3), words.code(), words.title())) if is_text else words.digits(1, 4)
        value = value.replace("'", "")
        meant = value.lower() if lower else value
        form = (
            words.choice(("{text} {said} {value}", "{text} {said} {value}", "{value} as {text}"))
            if operator == "="
            else "{text} {said} {value}"
        )
        conditions.append(
            (
                form.format(text=text, said=said, value=value),
                f"{name} {operator} {quote if is_text else ''}{meant}{quote if is_text else ''}",
            )
        )
    told = " and ".join(text for text, _ in conditions)
    said, aggregate = words.order.choice(_AGGREGATES) if words.chance(0.4) else ("", "")
    ask = words.choice(("What is the", "Which", "Show", "Name the", "list all", "what was the", "Find", "Tell me the"))
    begin = f"{said if aggregate else ask} {shown[0]}" if said in ("how many",) else f"{ask} {said} {shown[0]}"
    if words.chance(0.3):
        text = f"{words.choice(('When', 'With', 'For', 'If'))} {told}, {begin}"
    else:
        text = f"{begin} {words.choice(('with', 'where', 'when', 'for', 'that has', 'of'))} {told}"
    filters = [condition for _, condition in (reversed(conditions) if words.chance(0.3) else conditions)]
    return _tidy(words, text), _statement(words, names[0], aggregate, filters), [*shown]


def _statement(words: Words, column: str, aggregate: str, filters: list[str]) -> str:
    form = words.order.choices(("sql", "filter", "call"), (6, 2, 2))[0]
    if form == "filter":
        return words.choice((" and ", " AND ", " && ")).join(filters)
    if form == "call":
        return f"{aggregate.lower() or 'find'}({', '.join([column, *filters])})"
    asked = (
        column
        if not aggregate
        else words.choice((f"{aggregate}({column})", f"{aggregate}({column})", f"{aggregate} {column}"))
    )
    table = words.choice(("table", "t", "data", words.word()))
    end = words.choice(("", "", "", ";", f" LIMIT {words.order.randint(1, 100)}"))
    return f"SELECT {asked} FROM {table} WHERE {' AND '.join(filters)}{end}"


def _tidy(words: Words, text: str) -> str:
    text = " ".join(text.split())
    return (text[0].upper() + text[1:] if words.chance(0.7) else text) + words.choice(("?", "?", "", "."))
