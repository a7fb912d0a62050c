"""Generate the modifiers that follow the main part of a question: groups, conditions, time, order and limit."""

import re
from dataclasses import dataclass

from examples.honeycomb.datagen.conditions import Condition, clause
from examples.honeycomb.datagen.idioms import idiom
from examples.honeycomb.datagen.quantities import duration
from examples.honeycomb.datagen.query_draft import Filter
from examples.honeycomb.datagen.question_builder import QuestionBuilder, guard
from examples.honeycomb.datagen.when import comparison_words, granularity_words, time_words

_VERB = re.compile(
    r" (is|does|doesn't|isn't|contains|equals|starts|begins|ends|exists?|has|includes|mentions|differs)\b"
)
_VERB_WORDS = re.compile(r"never mentions|exceeds|holds| not like ")
_FILTER_COUNTS = ((0, 34), (1, 44), (2, 17), (3, 5))


@dataclass(frozen=True)
class ModifierChances:
    """The probability of modifiers, and the least number of conditions."""

    by: float = 0.0
    min_filters: int = 0
    limit: float = 0.06
    order: float = 0.05


def modifiers(t: QuestionBuilder, chances: ModifierChances) -> str:
    """Random modifiers in one phrase, each after a space; their meaning is added to the draft."""
    grouped = _by(t) if t.chance(chances.by) else ""
    t.draft.features |= {"breakdown"} if t.draft.breakdowns else set()
    conditions = _conditions(t, chances.min_filters)
    when = time_words(t) if t.chance(0.33) else ""
    parts = [grouped, conditions] if t.chance(0.6) else [conditions, grouped]
    parts.insert(t.rng.choice((2, 2, 2, 2, 0, 1)), when)
    parts += [granularity_words(t) if t.chance(0.03) else "", comparison_words(t) if t.chance(0.02) else ""]
    tail = [_order(t) if t.chance(chances.order) else "", _limit(t) if t.chance(chances.limit) else ""]
    return "".join(f" {part}" for part in parts + tail if part)


def _by(t: QuestionBuilder) -> str:
    mentions: list[str] = []
    for _ in range(t.rng.choices((1, 2, 3), (76, 20, 4))[0]):
        if column := t.pick_group():
            mentions.append(t.mention(column))
            t.draft.breakdowns.append(column.name)
    if not mentions:
        return ""
    names = dict(zip("abc", mentions, strict=False))
    dims = t.say(f"dims{len(mentions)}", **names) if len(mentions) > 1 else mentions[0]
    return t.say("by", dims=dims, pdims=dims)


def _conditions(t: QuestionBuilder, fewest: int) -> str:
    counts, weights = zip(*((n, w) for n, w in _FILTER_COUNTS if n >= fewest), strict=True)
    count = t.rng.choices(counts, weights)[0]
    if count >= 2 and not t.draft.filters and t.chance(0.3):
        return _any_of(t, count)
    found: list[Condition] = []
    for _ in range(count):
        condition = idiom(t) if t.chance(0.5) else None
        if condition is None:
            column = t.pick_filter()
            condition = clause(t, column) if column else None
        if condition:
            t.draft.filters += condition.filters
            found.append(condition)
    found.sort(key=lambda c: c.is_clause)
    ordered = [f for condition in found for f in condition.filters]
    t.draft.filters = [f for f in t.draft.filters if f not in ordered] + ordered
    phrases = [c.text for c in found if not c.is_clause]
    return " ".join(filter(None, (_chain(t, phrases), _clauses(t, [c.text for c in found if c.is_clause], "and"))))


def _chain(t: QuestionBuilder, phrases: list[str]) -> str:
    return (" and " if t.chance(0.35) else " ").join(phrases)


def _clauses(t: QuestionBuilder, texts: list[str], word: str) -> str:
    if not texts:
        return ""
    bare = not any(_VERB.search(text) or _VERB_WORDS.search(text) for text in texts)
    lead = t.say("lead_with" if bare and t.chance(0.65) else "lead")
    if word == "and" and t.chance(0.15):
        return f"{lead} " + f" and {lead} ".join(texts)
    if word == "and" and len(texts) > 1 and t.chance(0.1):
        return f"{lead} {', '.join(texts)}"
    return f"{lead} " + f" {word if not t.chance(0.1) else word.upper()} ".join(texts)


def _any_of(t: QuestionBuilder, count: int) -> str:
    """Conditions joined by "or", each a single filter on its own column."""
    texts: list[str] = []
    for _ in range(count):
        condition = _or_idiom(t) if t.chance(0.3) else None
        column = None if condition else t.pick_filter()
        condition = clause(t, column) if column else condition
        if condition and len(condition.filters) == 1 and condition.filters[0].op not in {"in", "not-in"}:
            t.draft.filters += condition.filters
            texts.append(condition.text)
    if len(texts) < 2:
        return _clauses(t, texts, "and")
    t.draft.any_filter = True
    t.draft.features.add("or")
    return _clauses(t, texts, "or")


def _or_idiom(t: QuestionBuilder) -> Condition | None:
    error, slow = t.role("error"), t.role("duration")
    if error and error.name not in t.draft.used and t.chance(0.5):
        return Condition((Filter(error.name, "=", True),), t.say("error_clause"), True)
    if slow and slow.name not in t.draft.used:
        value = duration(t.rng, slow.detail)
        return Condition((Filter(slow.name, ">", value.value),), t.say("slow_clause", t=guard(value.text)), True)
    return None


def _limit(t: QuestionBuilder) -> str:
    if t.draft.limit or not t.draft.breakdowns:
        return ""
    t.draft.limit = t.rng.choice((3, 5, 10, 10, 20, 25, 50, 100, 100, 500, 1000))
    t.draft.features.add("limit")
    return t.say("limit", n=guard(str(t.draft.limit)))


def _order(t: QuestionBuilder) -> str:
    """An explicit order, by a single calculation or a group."""
    if not t.draft.breakdowns or t.draft.limit or len(t.draft.calculations) > 1:
        return ""
    op, column = (t.draft.calculations or [("COUNT", None)])[0]
    if t.chance(0.25):
        t.draft.features.add("order")
        name = t.rng.choice(t.draft.breakdowns)
        found = next(c for c in t.columns.columns if c.name == name)
        t.draft.order_column, t.draft.ascending = name, True
        return t.say("order_col", o=t.mention(found))
    if op == "HEATMAP" or column is not None:
        return ""
    t.draft.features.add("order")
    section = "order_asc" if t.chance(0.55) else "order_desc"
    t.draft.ascending = section == "order_asc"
    return t.say(section, o="count" if op == "COUNT" else "concurrency")
