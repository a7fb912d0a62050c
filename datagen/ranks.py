"""Owns questions that rank groups or keep those over a threshold: top N, slowest, most errors, havings.

Use: `RANKS["slowest"](teller)`.
"""

from datagen.columns import Column
from datagen.conditions import amount
from datagen.heads import Head, aggregate_phrase, numeric_column
from datagen.idioms import error_filter, root_filter
from datagen.modifiers import Wants, modifiers
from datagen.quantities import number
from datagen.teller import Teller, guard

_GROUPED = Wants(by=0.05, limit=0, order=0, may_be_any=True)
_GROUPED_AND = Wants(by=0.05, limit=0, order=0, may_be_any=False)
_SIGNS = (("gt", ">"), ("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
_LIMITS = (1, 3, 3, 5, 5, 5, 10, 10, 10, 10, 15, 20, 20, 25, 50, 100)


def _group(t: Teller) -> tuple[Column, dict[str, str]] | None:
    column = t.pick_group(main_share=0.5, flags=False)
    if not column:
        return None
    t.draft.breakdowns.append(column.name)
    return column, {"nouns": t.mention(column, many=True), "noun": t.mention(column)}


def _limited(t: Teller, share: float) -> dict[str, str]:
    """A number for the frame that asks for so many groups."""
    if not t.chance(share):
        return {}
    t.draft.limit = t.rng.choice(_LIMITS[1:])
    words = {3: "three", 5: "five", 10: "ten"}
    text = words[t.draft.limit] if t.draft.limit in words and t.chance(0.12) else str(t.draft.limit)
    return {"n": guard(text)}


def top_count(t: Teller) -> str | None:
    """`top 10 endpoints`, `busiest services`, `rarest regions`."""
    group = _group(t)
    if not group:
        return None
    n = _limited(t, 0.55)
    t.draft.ascending = t.chance(0.22)
    name = (
        ("least" if t.draft.ascending else "top")
        if n
        else ("least_count" if t.draft.ascending else "most_count")
    )
    section = f"{name}_n_frame" if n and t.draft.ascending else f"{name}_frame"
    section = "top_count_frame" if section == "top_frame" else section
    return t.say(section, **group[1], **n, M=modifiers(t, _GROUPED))


def top_errors(t: Teller) -> str | None:
    """`which services have the most errors`."""
    found = error_filter(t)
    group = _group(t)
    if not found or not group or found.column == group[0].name:
        return None
    t.draft.filters.append(found)
    n = _limited(t, 0.35)
    return t.say(f"top_errors{'_n' if n else ''}_frame", **group[1], **n, M=modifiers(t, _GROUPED_AND))


def top_aggregate(t: Teller) -> str | None:
    """`endpoints with the highest p99 latency`."""
    group = _group(t)
    if not group:
        return None
    t.draft.ascending = t.chance(0.2)
    if t.chance(0.3):
        return _top_extreme(t, group[1])
    phrase = aggregate_phrase(t, ranked=True)
    if not phrase:
        return None
    n = _limited(t, 0.4)
    section = f"{'low' if t.draft.ascending else 'high'}_agg{'_n' if n else ''}_frame"
    return t.say(section, **group[1], **n, agg=phrase, M=modifiers(t, _GROUPED))


def _top_extreme(t: Teller, group: dict[str, str]) -> str | None:
    """`endpoints with the highest latency`: without an aggregate the highest is the maximum, the lowest the minimum."""
    column = numeric_column(t)
    if not column:
        return None
    t.draft.calculations.append(("MIN" if t.draft.ascending else "MAX", column.name))
    n = _limited(t, 0.4)
    section = f"{'lowest' if t.draft.ascending else 'highest'}{'_n' if n else ''}_frame"
    return t.say(section, **group, **n, num=t.mention(column), M=modifiers(t, _GROUPED))


def slowest(t: Teller) -> str | None:
    """`slowest endpoints`: by their maximum; traces are told by their root spans."""
    duration = t.role("duration")
    if not duration:
        return None
    t.draft.calculations.append(("MAX", duration.name))
    trace = t.role("trace")
    if trace and t.chance(0.3):
        t.draft.breakdowns.append(trace.name)
        nouns = t.rng.choice(("traces", "traces", t.mention(trace, many=True)))
        slots = {"nouns": nouns, "noun": "trace" if nouns == "traces" else t.mention(trace)}
    else:
        group = _group(t)
        if not group:
            return None
        slots = group[1]
    may_be_any = True
    if trace and t.draft.breakdowns == [trace.name] and (root := root_filter(t)):
        t.draft.filters.append(root)
        may_be_any = False
    wants = Wants(by=0.05, limit=0, order=0, may_be_any=may_be_any)
    n = _limited(t, 0.35)
    if not n and t.chance(0.1):
        t.draft.calculations, t.draft.ascending = [("MIN", duration.name)], True
        return t.say("fastest_frame", **slots, M=modifiers(t, wants))
    return t.say(f"slowest{'_n' if n else ''}_frame", **slots, **n, M=modifiers(t, wants))


def slow_events(t: Teller) -> str | None:
    """`slowest requests`: the maximum by trace, where there are traces."""
    duration = t.role("duration")
    if not duration:
        return None
    t.draft.calculations.append(("MAX", duration.name))
    if trace := t.role("trace"):
        t.draft.breakdowns.append(trace.name)
    return t.say("slow_events_frame", M=modifiers(t, _GROUPED))


def having_count(t: Teller) -> str | None:
    """`users with more than 100 requests`."""
    group = _group(t)
    if not group:
        return None
    return t.say("having_count_frame", **group[1], **_threshold(t), M=modifiers(t, _GROUPED))


def having_errors(t: Teller) -> str | None:
    """`services with at least 10 errors`."""
    found = error_filter(t)
    group = _group(t)
    if not found or not group or found.column == group[0].name:
        return None
    t.draft.filters.append(found)
    return t.say("having_errors_frame", **group[1], **_threshold(t), M=modifiers(t, _GROUPED_AND))


def _threshold(t: Teller) -> dict[str, str]:
    word, sign = t.rng.choice(_SIGNS)
    value = t.rng.choice(
        (1, 2, 3, 5, 10, 20, 50, 100, 100, 200, 500, 1000, 1000, 5000, 10_000, t.rng.randint(2, 999))
    )
    t.draft.havings.append(("COUNT", None, sign, value))
    return {"cmp": t.say(word), "sym": sign, "n": guard(number(t.rng, value))}


def having_aggregate(t: Teller) -> str | None:
    """`endpoints where p99 latency is over 1s`."""
    group = _group(t)
    phrase = aggregate_phrase(t, ranked=True) if group else None
    if not group or not phrase:
        return None
    op, name = t.draft.calculations[0]
    column = next(c for c in t.columns.columns if c.name == name)
    word, sign = t.rng.choice(_SIGNS)
    value = amount(t, column)
    t.draft.havings.append((op, name, sign, float(value.value)))
    slots = {"agg": phrase, "agg2": phrase, "cmp": t.say(word), "sym": sign, "x": value.text}
    return t.say("having_agg_frame", **group[1], **slots, M=modifiers(t, _GROUPED))


RANKS: dict[str, tuple[Head, int]] = {
    "top": (top_count, 9),
    "top errors": (top_errors, 4),
    "top aggregate": (top_aggregate, 6),
    "slowest": (slowest, 7),
    "slow events": (slow_events, 2),
    "having": (having_count, 3),
    "having errors": (having_errors, 2),
    "having aggregate": (having_aggregate, 3),
}
