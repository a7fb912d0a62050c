"""Questions about aggregates of numeric columns: averages, percentiles, heatmaps and rates."""

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.implied import premodify
from examples.honeycomb.datagen.modifiers import ModifierChances, modifiers
from examples.honeycomb.datagen.question_builder import QuestionBuilder

PERCENTILES = {"P50": 8, "P75": 5, "P90": 14, "P95": 26, "P99": 28, "P999": 4, "P80": 1, "P25": 1.5}
PERCENTILES |= {"P10": 1.5, "P20": 0.5, "P05": 1, "P01": 0.7, "P001": 0.4}
_AGGREGATES = {"AVG": 26, "SUM": 14, "MAX": 17, "MIN": 6, "pct": 37}
_SUMMABLE = {"bytes", "count", "money"}
_DURATION_WORDS = ("latency", "duration", "response time")


def numeric_column(t: QuestionBuilder, *, summable: bool = False) -> Column | None:
    """A column to aggregate; often the dataset's duration."""
    duration = t.role("duration")
    if duration and not summable and duration.name not in t.draft.used and t.chance(0.5):
        return duration
    return t.pick(lambda c: c.kind in _SUMMABLE if summable else c.numeric)


def aggregate_phrase(t: QuestionBuilder, *, ranked: bool = False) -> str | None:
    """`p95 latency`: adds the calculation to the draft; with `ranked`, MAX and MIN are not called highest or lowest."""
    op = t.rng.choices(tuple(_AGGREGATES), tuple(_AGGREGATES.values()))[0]
    column = numeric_column(t, summable=op == "SUM")
    if not column:
        return None
    slots = {"num": t.mention(column), "exact": t.exact(column)}
    if op != "pct":
        t.draft.calculations.append((op, column.name))
        return t.say(op.lower() + ("_plain" if ranked and op in {"MAX", "MIN"} else ""), **slots)
    op = t.rng.choices(tuple(PERCENTILES), tuple(PERCENTILES.values()))[0]
    t.draft.calculations.append((op, column.name))
    if column.role == "duration" and t.chance(0.16):
        return t.say("pct_alone", **percentile_words(t, op))
    return t.say("p50" if op == "P50" else "pct", **slots, **percentile_words(t, op))


def percentile_words(t: QuestionBuilder, op: str) -> dict[str, str]:
    """The names of a percentile operator: `p99`, `99th percentile`, `P99`."""
    digits = op[1:]
    if len(digits) == 3:
        spoken = {"999": "99.9", "001": "0.1"}[digits]
        short, ordinal = t.rng.choice((f"p{digits}", f"p{spoken}")), f"{spoken}th"
    else:
        short, ordinal = f"p{int(digits)}", f"{int(digits)}{'st' if digits == '01' else 'th'}"
    word = t.rng.choice(("percentile", "percentile", "percentile", "%ile", "pct"))
    short = short.upper() if t.chance(0.25) else short
    return {"p": short, "pth": f"{ordinal} {word}", "P": op}


def aggregate(t: QuestionBuilder) -> str | None:
    """`average cart size …`."""
    phrase = aggregate_phrase(t)
    return phrase and t.say("agg_frame", agg=phrase, M=modifiers(t, ModifierChances(by=0.5)))


def heatmap(t: QuestionBuilder) -> str | None:
    """`heatmap of latency …`."""
    column = numeric_column(t)
    if not column:
        return None
    t.draft.calculations.append(("HEATMAP", column.name))
    slots = {"num": t.mention(column), "exact": t.exact(column)}
    return t.say("heatmap_frame", **slots, M=modifiers(t, ModifierChances(by=0.4, order=0)))


def latency(t: QuestionBuilder) -> str | None:
    """`latency by endpoint`: without an aggregate, it means a heatmap of the duration."""
    column = t.role("duration")
    if not column or not all(t.columns.resolve(word) == column.name for word in _DURATION_WORDS):
        return None
    t.draft.calculations.append(("HEATMAP", column.name))
    premodify(t)
    return t.say("latency_frame", M=modifiers(t, ModifierChances(by=0.55, order=0)))


def rate(t: QuestionBuilder) -> str | None:
    """`rate of change of …`."""
    column = numeric_column(t)
    if not column:
        return None
    section = t.rng.choice(("rate_avg", "rate_avg", "rate_sum", "rate_max"))
    t.draft.calculations.append((section.upper(), column.name))
    phrase = t.say(section, num=t.mention(column), exact=t.exact(column))
    return t.say("agg_frame", agg=phrase, M=modifiers(t, ModifierChances(by=0.35)))


def several(t: QuestionBuilder) -> str | None:
    """`p50, p95 and p99 latency`, `count and average size`."""
    words = _percentiles(t) if t.chance(0.4) else _mixed(t)
    return words and t.say("multi_frame", aggs=words, M=modifiers(t, ModifierChances(by=0.5, order=0)))


def _percentiles(t: QuestionBuilder) -> str | None:
    column = numeric_column(t)
    if not column:
        return None
    ops = [op for op in sorted(PERCENTILES) if t.chance(min(0.9, PERCENTILES[op] / 30))]
    if len(ops) < 2:
        ops = ["P50", "P95", "P99"] if t.chance(0.5) else ["P95", "P99"]
    t.draft.calculations += [(op, column.name) for op in ops]
    names = t.join([percentile_words(t, op)["p"].lower() for op in ops], "and")
    number = t.mention(column)
    if column.role == "duration" and t.chance(0.12):
        return names
    return t.rng.choice((f"{names} {number}", f"{names} of {number}", f"{number} {names}"))


def _mixed(t: QuestionBuilder) -> str | None:
    parts: list[str] = []
    if t.chance(0.08) and (column := numeric_column(t)):
        t.draft.calculations.append(("HEATMAP", column.name))
        number = t.mention(column)
        parts.append(t.rng.choice((f"heatmap of {number}", f"{number} heatmap")))
    elif t.chance(0.5):
        t.draft.calculations.append(("COUNT", None))
        parts.append(t.rng.choice(("count", t.say("count_np"))))
    while len(parts) < 2 or (len(parts) < 3 and t.chance(0.25)):
        phrase = aggregate_phrase(t)
        if not phrase or len(set(t.draft.calculations)) < len(t.draft.calculations):
            return None
        parts.append(phrase)
    if t.chance(0.3):
        t.draft.calculations.reverse()
        parts.reverse()
    return t.join(parts, "and")
