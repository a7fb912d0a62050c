"""Owns what questions ask for when they do not rank groups: counts, errors, aggregates, heatmaps, lists, traces.

Each head puts its calculation into the draft and returns the whole sentence, or None where the dataset lacks the
columns. Use: `HEADS["aggregate"](teller)`.
"""

from collections.abc import Callable

from datagen.columns import Column
from datagen.idioms import error_filter, root_filter
from datagen.modifiers import Wants, modifiers
from datagen.teller import Teller
from datagen.words import plural, split_words

Head = Callable[[Teller], str | None]
PERCENTILES = {"P50": 8, "P75": 5, "P90": 14, "P95": 26, "P99": 28, "P999": 4, "P80": 1, "P25": 1.5}
PERCENTILES |= {"P10": 1.5, "P20": 0.5, "P05": 1, "P01": 0.7, "P001": 0.4}
_AGGREGATES = {"AVG": 26, "SUM": 14, "MAX": 17, "MIN": 6, "pct": 37}
_ORDINALS = {1: "1st", 5: "5th", 10: "10th", 20: "20th", 25: "25th", 50: "50th", 75: "75th", 80: "80th"}
_SUMMABLE = {"bytes", "count", "money"}


def count(t: Teller) -> str:
    """`how many requests …`."""
    return t.say("count_frame", M=modifiers(t, Wants(by=0.45)))


def events(t: Teller) -> str:
    """`requests where …`: the same count, asked by its conditions."""
    return t.say("events_frame", M=modifiers(t, Wants(by=0.12, min_filters=1)))


def errors(t: Teller) -> str | None:
    """`errors …`."""
    found = error_filter(t)
    if not found:
        return None
    t.draft.filters.append(found)
    return t.say("errors_frame", M=modifiers(t, Wants(by=0.45, may_be_any=False)))


def error_rate(t: Teller) -> str | None:
    """`error rate …`: counts with and without errors side by side."""
    found = error_filter(t)
    if not found:
        return None
    words = modifiers(t, Wants(by=0.5, limit=0, order=0))
    if found.column in t.draft.used:
        return None
    t.draft.breakdowns.append(found.column)
    return t.say("error_rate_frame", M=words)


def root(t: Teller) -> str | None:
    """`root spans …`."""
    found = root_filter(t)
    if not found:
        return None
    t.draft.filters.append(found)
    return t.say("root_frame", M=modifiers(t, Wants(by=0.4, may_be_any=False)))


def numeric_column(t: Teller, *, summable: bool = False) -> Column | None:
    """What to aggregate: mostly the duration of the dataset."""
    duration = t.role("duration")
    if duration and not summable and duration.name not in t.draft.used and t.chance(0.5):
        return duration
    return t.pick(lambda c: c.kind in _SUMMABLE if summable else c.numeric)


def aggregate_phrase(t: Teller, *, ranked: bool = False) -> str | None:
    """`p95 latency`: puts the calculation into the draft; a ranked one is not called highest or lowest itself."""
    op = t.rng.choices(tuple(_AGGREGATES), tuple(_AGGREGATES.values()))[0]
    column = numeric_column(t, summable=op == "SUM")
    if not column:
        return None
    number = t.mention(column)
    slots = {"num": number, "exact": t.exact(column)}
    if op != "pct":
        t.draft.calculations.append((op, column.name))
        return t.say(op.lower() + ("_plain" if ranked and op in {"MAX", "MIN"} else ""), **slots)
    op = t.rng.choices(tuple(PERCENTILES), tuple(PERCENTILES.values()))[0]
    t.draft.calculations.append((op, column.name))
    return t.say("p50" if op == "P50" else "pct", **slots, **percentile_words(t, op))


def percentile_words(t: Teller, op: str) -> dict[str, str]:
    """`p99`, `99th percentile`, `P99` for an operator."""
    digits = op[1:]
    if len(digits) == 3:
        spoken = {"999": "99.9", "001": "0.1"}[digits]
        short, ordinal = t.rng.choice((f"p{digits}", f"p{spoken}")), f"{spoken}th"
    else:
        short, ordinal = f"p{int(digits)}", _ORDINALS.get(int(digits), f"{int(digits)}th")
    word = t.rng.choice(("percentile", "percentile", "percentile", "%ile", "pct"))
    short = short.upper() if t.chance(0.25) else short
    return {"p": short, "pth": f"{ordinal} {word}", "P": op}


def aggregate(t: Teller) -> str | None:
    """`average cart size …`."""
    phrase = aggregate_phrase(t)
    return phrase and t.say("agg_frame", agg=phrase, M=modifiers(t, Wants(by=0.5)))


def heatmap(t: Teller) -> str | None:
    """`heatmap of latency …`."""
    column = numeric_column(t)
    if not column:
        return None
    t.draft.calculations.append(("HEATMAP", column.name))
    slots = {"num": t.mention(column), "exact": t.exact(column)}
    return t.say("heatmap_frame", **slots, M=modifiers(t, Wants(by=0.4, order=0)))


def latency(t: Teller) -> str | None:
    """`latency by endpoint`: without an aggregate it is the heatmap of the duration."""
    column = t.role("duration")
    if not column or not all(
        t.columns.resolve(w) == column.name for w in ("latency", "duration", "response time")
    ):
        return None
    t.draft.calculations.append(("HEATMAP", column.name))
    return t.say("latency_frame", M=modifiers(t, Wants(by=0.55, order=0)))


def distinct(t: Teller) -> str | None:
    """`how many unique users …`."""
    column = t.pick_group(main_share=0.35, flags=False)
    if not column:
        return None
    t.draft.calculations.append(("COUNT_DISTINCT", column.name))
    slots = {"nouns": t.mention(column, many=True), "noun": t.mention(column), "exact": t.exact(column)}
    return t.say("distinct_frame", **slots, M=modifiers(t, Wants(by=0.35)))


def entities(t: Teller) -> str | None:
    """`how many users …`: things with an id are counted once each."""
    column = t.pick(
        lambda c: c.kind == "id" and not c.exact_only and c.role not in {"parent"}, main_share=0.15
    )
    if not column:
        return None
    noun = t.mention(column, exact_share=0)
    if "\x02" in noun or set(split_words(noun)) & {"request", "span", "log", "event", "id"}:
        return None
    t.draft.calculations.append(("COUNT_DISTINCT", column.name))
    return t.say("entities_frame", nouns=plural(noun), noun=noun, M=modifiers(t, Wants(by=0.35)))


def listing(t: Teller) -> str | None:
    """`which regions are there`: counts by the column."""
    column = t.pick_group(flags=False)
    if not column:
        return None
    t.draft.breakdowns.append(column.name)
    slots = {"nouns": t.mention(column, many=True), "noun": t.mention(column), "exact": t.exact(column)}
    return t.say("list_frame", **slots, M=modifiers(t, Wants()))


def traces(t: Teller) -> str | None:
    """`traces with errors`: the ids of traces, by their number of events."""
    column = t.role("trace")
    if not column:
        return None
    t.draft.breakdowns.append(column.name)
    return t.say("trace_frame", M=modifiers(t, Wants(min_filters=1)))


def concurrency(t: Teller) -> str:
    """`concurrent requests …`."""
    t.draft.calculations.append(("CONCURRENCY", None))
    return t.say("concurrency_frame", M=modifiers(t, Wants(by=0.4)))


def rate(t: Teller) -> str | None:
    """`rate of change of …`."""
    column = numeric_column(t)
    if not column:
        return None
    section = t.rng.choice(("rate_avg", "rate_avg", "rate_sum", "rate_max"))
    t.draft.calculations.append((section.upper(), column.name))
    phrase = t.say(section, num=t.mention(column), exact=t.exact(column))
    return t.say("agg_frame", agg=phrase, M=modifiers(t, Wants(by=0.35)))


def several(t: Teller) -> str | None:
    """`p50, p95 and p99 latency`, `count and average size`, `min and max of …`."""
    words = _percentiles(t) if t.chance(0.4) else _mixed(t)
    return words and t.say("multi_frame", aggs=words, M=modifiers(t, Wants(by=0.5, order=0)))


def _percentiles(t: Teller) -> str | None:
    column = numeric_column(t)
    if not column:
        return None
    ops = [op for op in PERCENTILES if t.chance(min(0.9, PERCENTILES[op] / 30))]
    if len(ops) < 2:
        ops = ["P50", "P95", "P99"] if t.chance(0.5) else ["P95", "P99"]
    t.draft.calculations += [(op, column.name) for op in ops]
    names = t.join([percentile_words(t, op)["p"].lower() for op in ops], "and")
    number = t.mention(column)
    return t.rng.choice((f"{names} {number}", f"{names} of {number}", f"{number} {names}"))


def _mixed(t: Teller) -> str | None:
    parts: list[str] = []
    if t.chance(0.5):
        t.draft.calculations.append(("COUNT", None))
        parts.append(t.rng.choice(("count", t.say("count_np"))))
    while len(parts) < 2 or (len(parts) < 3 and t.chance(0.25)):
        phrase = aggregate_phrase(t)
        if not phrase or len(set(t.draft.calculations)) < len(t.draft.calculations):
            return None
        parts.append(phrase)
    if parts and t.chance(0.3):
        t.draft.calculations = t.draft.calculations[::-1]
        parts = parts[::-1]
    return t.join(parts, "and")


HEADS: dict[str, tuple[Head, int]] = {
    "count": (count, 9),
    "filter": (events, 10),
    "errors": (errors, 9),
    "error rate": (error_rate, 3),
    "root spans": (root, 2),
    "aggregate": (aggregate, 13),
    "heatmap": (heatmap, 5),
    "latency": (latency, 4),
    "distinct": (distinct, 5),
    "entities": (entities, 5),
    "list": (listing, 7),
    "traces": (traces, 3),
    "concurrency": (concurrency, 2),
    "rate": (rate, 2),
    "several": (several, 5),
}
